import argparse
import os

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader
from transformers import AutoConfig, AutoModelForCausalLM, get_cosine_schedule_with_warmup

from data import PackedTokens


class OuterOptimizer:
    """Nesterov SGD on the difference between local and shared weights."""

    def __init__(self, model, lr=0.7, momentum=0.9, group=None):
        self.model, self.group = model, group
        self.world = dist.get_world_size(group)
        self.shared = [p.detach().to("cpu", copy=True) for p in model.parameters()]
        for p in self.shared:
            p.grad = torch.zeros_like(p)
        self.opt = torch.optim.SGD(self.shared, lr=lr, momentum=momentum, nesterov=True)

    @torch.no_grad()
    def sync(self):
        for old, new in zip(self.shared, self.model.parameters()):
            old.grad.copy_(old - new.detach().cpu())
            dist.all_reduce(old.grad, op=dist.ReduceOp.SUM, group=self.group)
            old.grad.div_(self.world)
        self.opt.step()
        for old, new in zip(self.shared, self.model.parameters()):
            new.copy_(old, non_blocking=True)


def broadcast_weights(model, group):
    for p in model.parameters():
        buf = p.detach().cpu()
        dist.broadcast(buf, src=0, group=group)
        p.data.copy_(buf)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--config", default="configs/150m.json")
    ap.add_argument("--data", required=True)
    ap.add_argument("--inner-steps", type=int, default=500)
    ap.add_argument("--total-steps", type=int, default=88_000)
    ap.add_argument("--batch-size", type=int, default=32)
    ap.add_argument("--lr", type=float, default=4e-4)
    args = ap.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)))
    torch.cuda.set_device(device)
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")

    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(args.config), attn_implementation="sdpa")
    model = model.to(device)
    broadcast_weights(model, None)
    compiled = torch.compile(model)
    inner = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.1, betas=(0.9, 0.95), fused=True)
    sched = get_cosine_schedule_with_warmup(inner, 1000, args.total_steps)
    outer = OuterOptimizer(model)
    loader = DataLoader(PackedTokens(args.data, rank, world), batch_size=args.batch_size, num_workers=4,
                        pin_memory=True)

    step = 0
    for ids in loader:
        ids = ids.to(device, non_blocking=True)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = compiled(input_ids=ids, labels=ids).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        inner.step()
        inner.zero_grad(set_to_none=True)
        sched.step()
        step += 1

        mean_loss = loss.detach().cpu()
        dist.all_reduce(mean_loss, op=dist.ReduceOp.SUM)
        if step % args.inner_steps == 0:
            outer.sync()
            if rank == 0:
                print(f"step {step} loss {mean_loss.item() / world:.4f}", flush=True)
                torch.save({"model": model.state_dict(), "step": step}, f"ckpt/{step}.pt")
        if step >= args.total_steps:
            break
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
