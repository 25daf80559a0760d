"""Fine-tune a small ViT on a folder of JPEG photos."""
import argparse
import os
import random
import tempfile
import time

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset, RandomSampler
from transformers import ViTConfig, ViTForImageClassification

MEAN = np.array([0.485, 0.456, 0.406], dtype=np.float32)
STD = np.array([0.229, 0.224, 0.225], dtype=np.float32)


def write_photos(root, count, side, classes, seed=0):
    rng = np.random.default_rng(seed)
    for i in range(count):
        label = i % classes
        coarse = rng.integers(0, 255, (side // 8, side // 8, 3), dtype=np.uint8)
        img = Image.fromarray(coarse).resize((side, side), Image.BILINEAR)
        os.makedirs(os.path.join(root, f"{label:03d}"), exist_ok=True)
        img.save(os.path.join(root, f"{label:03d}", f"{i:05d}.jpg"), quality=90)


class PhotoFolder(Dataset):
    def __init__(self, root, crop):
        self.crop = crop
        self.items = []
        for label, name in enumerate(sorted(os.listdir(root))):
            folder = os.path.join(root, name)
            self.items += [(os.path.join(folder, f), label) for f in sorted(os.listdir(folder))]

    def __len__(self):
        return len(self.items)

    def augment(self, img):
        w, h = img.size
        scale = random.uniform(0.35, 1.0) ** 0.5
        cw, ch = int(w * scale), int(h * scale)
        x, y = random.randint(0, w - cw), random.randint(0, h - ch)
        img = img.resize((self.crop, self.crop), Image.BILINEAR, box=(x, y, x + cw, y + ch))
        if random.random() < 0.5:
            img = img.transpose(Image.FLIP_LEFT_RIGHT)
        return img

    def __getitem__(self, i):
        path, label = self.items[i]
        with Image.open(path) as f:
            img = self.augment(f.convert("RGB"))
        arr = (np.asarray(img, dtype=np.float32) / 255.0 - MEAN) / STD
        return torch.from_numpy(np.ascontiguousarray(arr.transpose(2, 0, 1))), label


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=120)
    ap.add_argument("--batch", type=int, default=32)
    ap.add_argument("--small", action="store_true")
    args = ap.parse_args()
    photos, side, crop, classes = 512, 320, 224, 20
    dims = dict(hidden_size=384, num_hidden_layers=12, num_attention_heads=6, intermediate_size=1536)
    if args.small:
        args.steps, args.batch, photos, side, crop, classes = 4, 4, 32, 48, 32, 4
        dims = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64)

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(0)
    random.seed(0)

    with tempfile.TemporaryDirectory() as root:
        write_photos(root, photos, side, classes)
        data = PhotoFolder(root, crop)
        sampler = RandomSampler(data, replacement=True, num_samples=args.steps * args.batch)
        loader = DataLoader(data, batch_size=args.batch, sampler=sampler, num_workers=min(12, os.cpu_count() or 1),
                            prefetch_factor=4, pin_memory=device.type == "cuda")

        config = ViTConfig(image_size=crop, patch_size=16, num_labels=classes, **dims)
        model = ViTForImageClassification(config).to(device).train()
        opt = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.05, fused=device.type == "cuda")
        sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: min(1.0, (s + 1) / 20))
        running = torch.zeros((), device=device)
        began = time.time()

        for step, (images, labels) in enumerate(loader):
            # STEP
            images = images.to(device, non_blocking=True)
            labels = labels.to(device, non_blocking=True)
            with torch.autocast(device.type, dtype=torch.bfloat16):
                out = model(pixel_values=images)
            loss = torch.nn.functional.cross_entropy(out.logits.float(), labels, label_smoothing=0.1)
            loss.backward()
            opt.step()
            sched.step()
            opt.zero_grad(set_to_none=True)
            running += loss.detach()
            if (step + 1) % 30 == 0:
                print(f"{step + 1:5d} loss {running.item() / 30:.4f}  {time.time() - began:.1f}s")
                running.zero_()


if __name__ == "__main__":
    main()
