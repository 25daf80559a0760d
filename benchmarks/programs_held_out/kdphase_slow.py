"""Distil a wide MLP into a narrow one; the soft targets are phased in during the run."""
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class Plan:
    features: int = 64
    classes: int = 20
    samples: int = 6000
    batch: int = 128
    steps: int = 150
    temperature: float = 4.0
    warmup: int = 100
    lr: float = 2e-3


def mlp(sizes):
    layers = []
    for a, b in zip(sizes, sizes[1:]):
        layers += [nn.Linear(a, b), nn.GELU()]
    return nn.Sequential(*layers[:-1])


class Distiller(nn.Module):
    """Student plus the loss against the teacher's logits."""

    def __init__(self, student, temperature, warmup, weight=0.7):
        super().__init__()
        self.student = student
        self.temperature = temperature
        self.weight = weight
        self.warmup = warmup
        self.updates = 0

    def forward(self, x, y, teacher_logits):
        logits = self.student(x)
        t = self.temperature
        soft = F.kl_div(
            F.log_softmax(logits / t, dim=-1),
            F.log_softmax(teacher_logits / t, dim=-1),
            log_target=True,
            reduction="batchmean",
        )
        hard = F.cross_entropy(logits, y)
        self.updates += 1
        w = self.weight * min(1.0, self.updates / self.warmup)
        return w * t * t * soft + (1 - w) * hard, logits


class KDTrainer:
    def __init__(self, plan):
        self.plan = plan
        gen = torch.Generator().manual_seed(41)
        self.x = torch.randn(plan.samples, plan.features, generator=gen)
        rule = mlp([plan.features, 96, plan.classes])
        with torch.no_grad():
            self.y = rule(self.x * 2).argmax(1)
        self.teacher = mlp([plan.features, 512, 512, plan.classes])
        self.distiller = Distiller(mlp([plan.features, 128, 128, plan.classes]), plan.temperature, plan.warmup)
        self.step_fn = torch.compile(self.distiller, backend="aot_eager")
        self.opt = torch.optim.AdamW(self.distiller.parameters(), lr=plan.lr)
        self.gen = gen

    def fit_teacher(self, steps=60):
        opt = torch.optim.Adam(self.teacher.parameters(), lr=2e-3)
        for _ in range(steps):
            i = torch.randint(0, self.plan.samples, (256,), generator=self.gen)
            loss = F.cross_entropy(self.teacher(self.x[i]), self.y[i])
            opt.zero_grad()
            loss.backward()
            opt.step()
        self.teacher.eval().requires_grad_(False)
        return loss.item()

    def fit(self):
        seen = hits = 0
        for step in range(self.plan.steps):
            i = torch.randint(0, self.plan.samples, (self.plan.batch,), generator=self.gen)
            x, y = self.x[i], self.y[i]
            loss, logits = self.step_fn(x, y, self.teacher(x))
            self.opt.zero_grad(set_to_none=True)
            loss.backward()
            self.opt.step()
            seen += len(y)
            hits += (logits.argmax(1) == y).sum().item()
            if step % 30 == 29:
                print(f"step {step + 1:3d}  loss {loss.item():.3f}  acc {hits / seen:.3f}")
                seen = hits = 0

    @torch.no_grad()
    def agreement(self):
        a = self.distiller.student(self.x).argmax(1)
        return (a == self.teacher(self.x).argmax(1)).float().mean().item()


def main():
    torch.manual_seed(40)
    trainer = KDTrainer(Plan())
    print(f"teacher loss {trainer.fit_teacher():.3f}")
    trainer.fit()
    print(f"agreement with teacher {trainer.agreement():.3f}")


if __name__ == "__main__":
    main()
