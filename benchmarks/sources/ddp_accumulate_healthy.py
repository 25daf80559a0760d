import argparse
import os
from contextlib import nullcontext

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler
from torchvision import datasets
from torchvision.models import resnet50
from torchvision.transforms import v2


def transform(train):
    tail = [v2.PILToTensor(), v2.ToDtype(torch.float32, scale=True),
            v2.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])]
    head = [v2.RandomResizedCrop(224, antialias=True), v2.RandomHorizontalFlip()] if train else \
           [v2.Resize(256, antialias=True), v2.CenterCrop(224)]
    return v2.Compose(head + tail)


def loader(root, split, batch_size, workers):
    ds = datasets.ImageFolder(os.path.join(root, split), transform(split == "train"))
    sampler = DistributedSampler(ds, shuffle=split == "train", drop_last=split == "train")
    return DataLoader(ds, batch_size=batch_size, sampler=sampler, num_workers=workers, pin_memory=True,
                      persistent_workers=True, drop_last=split == "train"), sampler


@torch.inference_mode()
def accuracy(model, data, device):
    model.eval()
    stats = torch.zeros(2, device=device)
    for x, y in data:
        x = x.to(device, non_blocking=True).to(memory_format=torch.channels_last)
        y = y.to(device, non_blocking=True)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            pred = model(x).argmax(dim=1)
        stats[0] += (pred == y).sum()
        stats[1] += y.numel()
    dist.all_reduce(stats)
    right, n = stats.tolist()
    return right / n


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("root")
    ap.add_argument("--epochs", type=int, default=90)
    ap.add_argument("--batch-size", type=int, default=64)
    ap.add_argument("--accum", type=int, default=4)
    ap.add_argument("--lr", type=float, default=0.8)
    ap.add_argument("--workers", type=int, default=10)
    args = ap.parse_args()
    dist.init_process_group("nccl")
    local = int(os.environ["LOCAL_RANK"])
    device = torch.device("cuda", local)
    torch.cuda.set_device(device)
    torch.backends.cudnn.benchmark = True
    train, sampler = loader(args.root, "train", args.batch_size, args.workers)
    val, _ = loader(args.root, "val", 256, args.workers)
    model = resnet50(weights=None).to(device).to(memory_format=torch.channels_last)
    ddp = DDP(model, device_ids=[local], gradient_as_bucket_view=True)
    opt = torch.optim.SGD(ddp.parameters(), lr=args.lr, momentum=0.9, weight_decay=5e-5, nesterov=True)
    steps = args.epochs * (len(train) // args.accum)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, args.lr, total_steps=steps, pct_start=0.05)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        ddp.train()
        running = torch.zeros((), device=device)
        usable = len(train) // args.accum * args.accum
        for i, (x, y) in enumerate(train):
            if i >= usable:
                break
            last = (i + 1) % args.accum == 0
            x = x.to(device, non_blocking=True).to(memory_format=torch.channels_last)
            y = y.to(device, non_blocking=True)
            with nullcontext() if last else ddp.no_sync():
                with torch.autocast("cuda", dtype=torch.bfloat16):
                    loss = F.cross_entropy(ddp(x), y, label_smoothing=0.1) / args.accum
                loss.backward()
            running += loss.detach()
            if last:
                opt.step()
                opt.zero_grad(set_to_none=True)
                sched.step()
        acc = accuracy(model, val, device)
        if dist.get_rank() == 0:
            print(f"{epoch} loss {running.item() * args.accum / usable:.4f} top1 {acc:.4f}")
            torch.save({"model": model.state_dict(), "epoch": epoch}, "resnet50.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
