import argparse
import gc
import json
from pathlib import Path

import numpy as np
import torch
from diffusers import AutoencoderKL
from PIL import Image
from torch.utils.data import DataLoader, Dataset
from torchvision.transforms import v2
from tqdm import tqdm
from transformers import AutoProcessor, BlipForConditionalGeneration


class Folder(Dataset):
    def __init__(self, root, transform):
        self.paths = sorted(p for p in Path(root).rglob("*") if p.suffix.lower() in {".jpg", ".png", ".webp"})
        self.transform = transform

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, i):
        image = Image.open(self.paths[i]).convert("RGB")
        return self.transform(image), i


def loader(ds, batch_size, workers):
    return DataLoader(ds, batch_size=batch_size, num_workers=workers, pin_memory=True)


@torch.inference_mode()
def caption(root, args, device):
    name = "Salesforce/blip-image-captioning-large"
    proc = AutoProcessor.from_pretrained(name)
    model = BlipForConditionalGeneration.from_pretrained(name, torch_dtype=torch.float16).to(device).eval()
    tf = v2.Compose([v2.Resize((384, 384), antialias=True), v2.PILToTensor(), v2.ToDtype(torch.float16, scale=True),
                     v2.Normalize(proc.image_processor.image_mean, proc.image_processor.image_std)])
    ds, out = Folder(root, tf), {}
    for x, idx in tqdm(loader(ds, 64, args.workers), desc="captions"):
        ids = model.generate(pixel_values=x.to(device, non_blocking=True), max_new_tokens=40, num_beams=3)
        for i, text in zip(idx.tolist(), proc.batch_decode(ids, skip_special_tokens=True)):
            out[str(ds.paths[i].relative_to(root))] = text.strip()
    return out


@torch.inference_mode()
def encode(root, args, device):
    vae = AutoencoderKL.from_pretrained(args.vae, torch_dtype=torch.bfloat16).to(device).eval()
    tf = v2.Compose([v2.Resize(args.size, antialias=True), v2.CenterCrop(args.size), v2.PILToTensor(),
                     v2.ToDtype(torch.float32, scale=True), v2.Normalize([0.5], [0.5])])
    ds = Folder(root, tf)
    shape = (len(ds), 8, args.size // 8, args.size // 8)
    store = np.lib.format.open_memmap(args.out / "moments.npy", mode="w+", dtype=np.float16, shape=shape)
    for x, idx in tqdm(loader(ds, 16, args.workers), desc="latents"):
        x = x.to(device, torch.bfloat16, non_blocking=True)
        moments = vae.encode(x).latent_dist.parameters
        store[idx.numpy()] = moments.to(torch.float16).cpu().numpy()
    store.flush()
    return [str(p.relative_to(root)) for p in ds.paths]


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("root", type=Path)
    ap.add_argument("out", type=Path)
    ap.add_argument("--size", type=int, default=512)
    ap.add_argument("--workers", type=int, default=12)
    ap.add_argument("--vae", default="stabilityai/sd-vae-ft-mse")
    args = ap.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    device = torch.device("cuda")
    captions = caption(args.root, args, device)
    (args.out / "captions.json").write_text(json.dumps(captions, ensure_ascii=False, indent=1))
    gc.collect()
    torch.cuda.empty_cache()
    names = encode(args.root, args, device)
    missing = [n for n in names if n not in captions]
    (args.out / "index.json").write_text(json.dumps({"files": names, "without_caption": missing}))
    print(f"{len(names)} images, {len(missing)} without caption")


if __name__ == "__main__":
    main()
