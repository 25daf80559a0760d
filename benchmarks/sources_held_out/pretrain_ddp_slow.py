import math
import os
import time

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

from model import GPT, GPTConfig

batch_size, block_size, grad_accum = 8, 1024, 16
max_iters, warmup, lr_max, lr_min = 100_000, 2000, 6e-4, 6e-5
log_interval, ckpt_interval = 20, 2000


def lr_at(it):
    if it < warmup:
        return lr_max * (it + 1) / warmup
    ratio = (it - warmup) / (max_iters - warmup)
    return lr_min + 0.5 * (lr_max - lr_min) * (1 + math.cos(math.pi * ratio))


class TokenStream:
    def __init__(self, path, rank, device):
        self.data = np.memmap(path, dtype=np.uint16, mode="r")
        self.rng = np.random.default_rng(1337 + rank)
        self.device = device

    def next(self):
        ix = self.rng.integers(0, len(self.data) - block_size - 1, size=batch_size)
        buf = np.stack([self.data[i:i + block_size + 1] for i in ix]).astype(np.int64)
        t = torch.from_numpy(buf).pin_memory().to(self.device, non_blocking=True)
        return t[:, :-1], t[:, 1:]


def main():
    dist.init_process_group("nccl")
    rank, world = dist.get_rank(), dist.get_world_size()
    local = int(os.environ["LOCAL_RANK"])
    device = torch.device("cuda", local)
    torch.cuda.set_device(device)
    torch.manual_seed(1337 + rank)
    torch.set_float32_matmul_precision("high")

    raw = GPT(GPTConfig(block_size=block_size, n_layer=24, n_head=16, n_embd=1024)).to(device)
    opt = raw.configure_optimizers(weight_decay=0.1, lr=lr_max, betas=(0.9, 0.95), fused=True)
    model = DDP(torch.compile(raw), device_ids=[local], gradient_as_bucket_view=True)
    stream = TokenStream("data/openwebtext/train.bin", rank, device)

    x, y = stream.next()
    t0 = time.time()
    for it in range(max_iters):
        for group in opt.param_groups:
            group["lr"] = lr_at(it)
        total = torch.zeros((), device=device)
        for micro in range(grad_accum):
            with torch.autocast("cuda", dtype=torch.bfloat16):
                _, loss = model(x, y)
                loss = loss / grad_accum
            x, y = stream.next()
            loss.backward()
            total += loss.detach()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        opt.zero_grad(set_to_none=True)

        if it % log_interval == 0:
            dist.all_reduce(total, op=dist.ReduceOp.AVG)
            if rank == 0:
                dt = (time.time() - t0) / log_interval
                print(f"iter {it} loss {total.item():.4f} {dt * 1e3:.0f} ms")
            t0 = time.time()
        if it and it % ckpt_interval == 0:
            if rank == 0:
                torch.save({"model": raw.state_dict(), "opt": opt.state_dict(), "it": it}, "out/ckpt.pt")
            dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
