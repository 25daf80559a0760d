"""Self-distillation without labels (DINO recipe) on small images with a tiny ViT."""
import argparse
import copy
import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class Layer(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.ln1, self.ln2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.fc1, self.fc2 = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.qkv(self.ln1(x)).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, n, d))
        return x + self.fc2(F.gelu(self.fc1(self.ln2(x))))


class Backbone(nn.Module):
    def __init__(self, side, patch, dim, depth, heads, prototypes):
        super().__init__()
        self.grid = side // patch
        self.patchify = nn.Conv2d(3, dim, patch, patch)
        self.cls = nn.Parameter(torch.zeros(1, 1, dim))
        self.pos = nn.Parameter(torch.randn(1, dim, self.grid, self.grid) * 0.02)
        self.layers = nn.ModuleList([Layer(dim, heads) for _ in range(depth)])
        self.ln = nn.LayerNorm(dim)
        self.head = nn.Sequential(nn.Linear(dim, 1024), nn.GELU(), nn.Linear(1024, 256))
        self.proto = nn.Linear(256, prototypes, bias=False)

    def forward(self, x):
        x = self.patchify(x)
        pos = self.pos
        if x.shape[-1] != self.grid:
            pos = F.interpolate(pos, size=x.shape[-2:], mode="bilinear")
        x = (x + pos).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(x.shape[0], -1, -1), x], 1)
        for layer in self.layers:
            x = layer(x)
        return self.proto(F.normalize(self.head(self.ln(x[:, 0])), dim=-1))


class MultiCrop:
    """Random views made on the device, the same geometry for a whole batch."""

    def __init__(self, side, local_side, locals_):
        self.side, self.local_side, self.locals = side, local_side, locals_

    def view(self, images, size, low, high):
        b, dev = images.shape[0], images.device
        scale = torch.empty(b, device=dev).uniform_(low, high)
        flip = torch.where(torch.rand(b, device=dev) < 0.5, -1.0, 1.0)
        shift = (torch.rand(b, 2, device=dev) * 2 - 1) * (1 - scale)[:, None]
        zero = torch.zeros_like(scale)
        theta = torch.stack([torch.stack([scale * flip, zero, shift[:, 0]], 1),
                             torch.stack([zero, scale, shift[:, 1]], 1)], 1)
        grid = F.affine_grid(theta, (b, 3, size, size), align_corners=False)
        out = F.grid_sample(images, grid, align_corners=False)
        return out * torch.empty(b, 1, 1, 1, device=dev).uniform_(0.7, 1.3)

    def __call__(self, images):
        wide = torch.cat([self.view(images, self.side, 0.5, 1.0) for _ in range(2)])
        near = torch.cat([self.view(images, self.local_side, 0.2, 0.5) for _ in range(self.locals)])
        return wide, near


class DinoTrainer:
    def __init__(self, net, crops, device, lr=5e-4):
        self.student = net.to(device)
        self.teacher = copy.deepcopy(self.student).requires_grad_(False)
        self.crops, self.device = crops, device
        self.opt = torch.optim.AdamW(self.student.parameters(), lr=lr, weight_decay=0.04)
        self.center = torch.zeros(1, net.proto.out_features, device=device)
        self.grad_norm = 0.0

    def update_teacher(self, m):
        student, teacher = self.student.state_dict(), self.teacher.state_dict()
        for name in teacher:
            teacher[name] = teacher[name] * m + student[name] * (1 - m)
        self.teacher.load_state_dict(teacher)

    def measure_gradients(self):
        total = 0.0
        for p in self.student.parameters():
            if p.grad is not None:
                total += p.grad.norm().item() ** 2
        self.grad_norm = math.sqrt(total)

    def distill(self, student, teacher, batch):
        with torch.no_grad():
            target = F.softmax((teacher.float() - self.center) / 0.04, -1).view(2, batch, -1)
            self.center.lerp_(teacher.float().mean(0, keepdim=True), 0.1)
        logp = F.log_softmax(student.float() / 0.1, -1).view(-1, batch, student.shape[-1])
        cross = -torch.einsum("tbk,sbk->ts", target, logp) / batch
        same = torch.eye(2, logp.shape[0], device=self.device)
        return (cross * (1 - same)).sum() / (2 * (logp.shape[0] - 1))

    def step(self, images, m):
        wide, near = self.crops(images)
        with torch.autocast(self.device.type, dtype=torch.bfloat16):
            with torch.no_grad():
                t = self.teacher(wide)
            s = torch.cat([self.student(wide), self.student(near)])
        loss = self.distill(s, t, images.shape[0])
        self.opt.zero_grad(set_to_none=True)
        loss.backward()
        self.measure_gradients()
        self.opt.step()
        self.update_teacher(m)
        return loss.detach()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--small", action="store_true")
    args = ap.parse_args()
    cfg = dict(side=64, patch=8, dim=192, depth=12, heads=3, prototypes=4096)
    batch, steps, images, local = 48, 200, 4096, 32
    if args.small:
        cfg = dict(side=16, patch=4, dim=32, depth=2, heads=2, prototypes=64)
        batch, steps, images, local = 4, 3, 16, 8
    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    data = torch.randn(images, 3, cfg["side"], cfg["side"], device=device)
    trainer = DinoTrainer(Backbone(**cfg), MultiCrop(cfg["side"], local, 4), device)
    for i in range(steps):
        # STEP
        m = 1 - 0.004 * (math.cos(math.pi * i / steps) + 1) / 2
        pick = torch.randint(images, (batch,), device=device)
        loss = trainer.step(data[pick], m)
        if i % 40 == 0:
            print(f"{i:4d} loss {loss.item():.4f} grad {float(trainer.grad_norm):.3f}")


if __name__ == "__main__":
    main()
