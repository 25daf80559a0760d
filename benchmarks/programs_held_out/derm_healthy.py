"""Skin lesion classifier: functions plus callbacks, validated with test-time augmentation."""
import copy
import math

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset


def make_lesions(n, size=64, seed=0):
    g = torch.Generator().manual_seed(seed)
    yy, xx = torch.meshgrid(torch.linspace(-1, 1, size), torch.linspace(-1, 1, size), indexing="ij")
    y = (torch.rand(n, generator=g) > 0.6).float()
    angle = torch.atan2(yy, xx)
    edge = 0.5 + 0.12 * y.view(-1, 1, 1) * torch.sin(5 * angle + 6 * torch.rand(n, 1, 1, generator=g))
    mask = ((xx ** 2 + yy ** 2).sqrt() < edge).float()
    skin = torch.tensor([0.85, 0.65, 0.55]).view(1, 3, 1, 1)
    x = skin - 0.4 * mask[:, None] + 0.15 * torch.randn(n, 3, size, size, generator=g)
    return TensorDataset(x, y)


def build_model(ch=24):
    layers, cin = [], 3
    for cout, stride in ((ch, 2), (ch, 1), (ch * 2, 2), (ch * 2, 1)):
        layers += [nn.Conv2d(cin, cout, 3, stride, 1, bias=False), nn.BatchNorm2d(cout), nn.ReLU(inplace=True)]
        cin = cout
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(cin, 1))


class Ema:
    def __init__(self, model, decay=0.95):
        self.decay = decay
        self.shadow = copy.deepcopy(model).requires_grad_(False).eval()

    @torch.no_grad()
    def after_step(self, state):
        torch._foreach_lerp_(list(self.shadow.parameters()), list(state["model"].parameters()), 1 - self.decay)
        for mine, theirs in zip(self.shadow.buffers(), state["model"].buffers()):
            mine.copy_(theirs)


class NanGuard:
    def after_step(self, state):
        if not math.isfinite(state["loss"]):
            raise FloatingPointError(f"loss became {state['loss']} in step {state['step']}")


class Printer:
    def __init__(self, every=15):
        self.every = every
        self.window = []

    def after_step(self, state):
        self.window = (self.window + [state["loss"]])[-self.every:]
        if state["step"] % self.every == 0:
            print(f"step {state['step']:3d} loss {sum(self.window) / len(self.window):.4f}", flush=True)


def augment(x):
    flip = torch.rand(len(x)) < 0.5
    x = x.clone()
    x[flip] = x[flip].flip(-1)
    return torch.rot90(x, int(torch.randint(4, ())), (-2, -1)).contiguous()


def train_epoch(model, loader, optimizer, callbacks, state):
    model.train()
    for x, y in loader:
        x = augment(x)
        logits = model(x).squeeze(1)
        loss = F.binary_cross_entropy_with_logits(logits, y)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        state.update(loss=loss.item(), step=state["step"] + 1)
        for cb in callbacks:
            cb.after_step(state)


def auroc(scores, labels):
    ranks = scores.double().argsort().argsort().double() + 1
    pos = labels.sum().double()
    neg = len(labels) - pos
    return ((ranks[labels > 0].sum() - pos * (pos + 1) / 2) / (pos * neg)).item()


@torch.inference_mode()
def validate(model, loader):
    model.eval()
    scores, labels = [], []
    for batch, target in loader:
        views = [batch, batch.flip(-1), batch.flip(-2)]
        prob = model(torch.cat(views)).sigmoid().view(len(views), -1).mean(0)
        scores.append(prob)
        labels.append(target)
    return auroc(torch.cat(scores), torch.cat(labels))


def main(epochs=4):
    torch.manual_seed(4)
    train = DataLoader(make_lesions(480, seed=1), batch_size=16, shuffle=True, drop_last=True)
    val = DataLoader(make_lesions(96, seed=2), batch_size=48)
    model = build_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=1e-2)
    ema = Ema(model)
    state = {"model": model, "step": 0, "loss": 0.0}
    best, best_weights = 0.0, None
    for epoch in range(epochs):
        train_epoch(model, train, optimizer, [NanGuard(), ema, Printer()], state)
        score = validate(ema.shadow, val)
        if score > best:
            best, best_weights = score, copy.deepcopy(ema.shadow.state_dict())
        print(f"epoch {epoch} auroc {score:.4f}")
    model.load_state_dict(best_weights)
    print(f"best auroc {best:.4f}, reloaded {validate(model, val):.4f}")


if __name__ == "__main__":
    main()
