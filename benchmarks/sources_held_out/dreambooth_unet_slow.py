import argparse
from pathlib import Path

import torch
import torch.nn.functional as F
from diffusers import AutoencoderKL, DDPMScheduler, UNet2DConditionModel
from diffusers.optimization import get_scheduler
from PIL import Image
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms
from tqdm import tqdm
from transformers import CLIPTextModel, CLIPTokenizer


class InstanceImages(Dataset):
    def __init__(self, folder, size=512):
        tf = transforms.Compose([
            transforms.Resize(size), transforms.CenterCrop(size), transforms.ToTensor(),
            transforms.Normalize([0.5], [0.5]),
        ])
        self.images = [tf(Image.open(p).convert("RGB")) for p in sorted(Path(folder).iterdir())]

    def __len__(self):
        return len(self.images) * 200

    def __getitem__(self, i):
        return self.images[i % len(self.images)]


def parse():
    ap = argparse.ArgumentParser()
    ap.add_argument("--model", default="runwayml/stable-diffusion-v1-5")
    ap.add_argument("--data", required=True)
    ap.add_argument("--prompt", default="a photo of sks dog")
    ap.add_argument("--steps", type=int, default=1200)
    ap.add_argument("--lr", type=float, default=5e-6)
    ap.add_argument("--out", default="out")
    return ap.parse_args()


def main():
    args = parse()
    device, dtype = torch.device("cuda"), torch.bfloat16
    tok = CLIPTokenizer.from_pretrained(args.model, subfolder="tokenizer")
    text = CLIPTextModel.from_pretrained(args.model, subfolder="text_encoder", torch_dtype=dtype).to(device)
    vae = AutoencoderKL.from_pretrained(args.model, subfolder="vae", torch_dtype=dtype).to(device)
    unet = UNet2DConditionModel.from_pretrained(args.model, subfolder="unet").to(device)
    noise_sched = DDPMScheduler.from_pretrained(args.model, subfolder="scheduler")
    vae.requires_grad_(False)
    text.requires_grad_(False)
    unet.train()

    loader = DataLoader(InstanceImages(args.data), batch_size=4, shuffle=True, pin_memory=True, drop_last=True)
    opt = torch.optim.AdamW(unet.parameters(), lr=args.lr, fused=True)
    lr_sched = get_scheduler("constant", opt)
    ids = tok([args.prompt], padding="max_length", max_length=tok.model_max_length, return_tensors="pt").input_ids
    ids = ids.to(device)

    step, bar = 0, tqdm(total=args.steps)
    while step < args.steps:
        for pixels in loader:
            pixels = pixels.to(device, dtype, non_blocking=True)
            with torch.no_grad():
                latents = vae.encode(pixels).latent_dist.sample() * vae.config.scaling_factor
                cond = text(ids)[0].expand(pixels.shape[0], -1, -1)
            noise = torch.randn(latents.shape).to(device, dtype)
            t = torch.randint(0, noise_sched.config.num_train_timesteps, (pixels.shape[0],)).to(device)
            noisy = noise_sched.add_noise(latents, noise, t)
            with torch.autocast("cuda", dtype=dtype):
                pred = unet(noisy, t, cond).sample
            loss = F.mse_loss(pred.float(), noise.float())
            loss.backward()
            torch.nn.utils.clip_grad_norm_(unet.parameters(), 1.0)
            opt.step()
            lr_sched.step()
            opt.zero_grad(set_to_none=True)
            step += 1
            bar.update(1)
            if step % 400 == 0:
                unet.save_pretrained(Path(args.out) / f"unet-{step}")
            if step >= args.steps:
                break


if __name__ == "__main__":
    main()
