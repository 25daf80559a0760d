"""Evaluate a small defect classifier on a stream of labelled batches."""
import torch
import torch.nn as nn

NUM_CLASSES = 5


class Classifier(nn.Module):
    def __init__(self, in_dim=48, width=256):
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(in_dim, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, NUM_CLASSES)
        )

    def forward(self, x):
        return self.body(x)


def stream(n_batches, batch_size, seed):
    gen = torch.Generator().manual_seed(seed)
    centers = torch.randn(NUM_CLASSES, 48, generator=gen)
    for _ in range(n_batches):
        y = torch.randint(0, NUM_CLASSES, (batch_size,), generator=gen)
        yield centers[y] * 0.4 + torch.randn(batch_size, 48, generator=gen), y


def pretrain(model, steps=60):
    opt = torch.optim.Adam(model.parameters(), lr=2e-3)
    for x, y in stream(steps, 256, seed=7):
        loss = nn.functional.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
    return loss.item()


def auroc(scores, positive):
    order = torch.argsort(scores, descending=True, stable=True)
    hits = positive[order].double()
    tp = hits.cumsum(0)
    fp = (1 - hits).cumsum(0)
    tpr = torch.cat([tp.new_zeros(1), tp / tp[-1]])
    fpr = torch.cat([fp.new_zeros(1), fp / fp[-1]])
    return torch.trapezoid(tpr, fpr).item()


class Meter:
    def __init__(self):
        self.probs = []
        self.targets = []
        self.confusion = torch.zeros(NUM_CLASSES, NUM_CLASSES, dtype=torch.long)

    def update(self, probs, target):
        self.probs.append(probs)
        self.targets.append(target)
        pred = probs.argmax(1)
        cells = torch.bincount(target * NUM_CLASSES + pred, minlength=NUM_CLASSES ** 2)
        self.confusion += cells.view(NUM_CLASSES, NUM_CLASSES)

    def macro_auroc(self):
        probs = torch.cat(self.probs)
        targets = torch.cat(self.targets)
        return sum(auroc(probs[:, c], targets == c) for c in range(NUM_CLASSES)) / NUM_CLASSES

    def accuracy(self):
        return self.confusion.diag().sum().item() / self.confusion.sum().item()

    def per_class_recall(self):
        return (self.confusion.diag() / self.confusion.sum(1).clamp(min=1)).tolist()


def show(done, total, **metrics):
    body = "  ".join(f"{k} {v:.4f}" for k, v in metrics.items())
    print(f"[{done:3d}/{total}] {body}")


@torch.no_grad()
def evaluate(model, n_batches, batch_size):
    model.eval()
    meter = Meter()
    for i, (x, y) in enumerate(stream(n_batches, batch_size, seed=7), start=1):
        probs = model(x).softmax(1)
        meter.update(probs, y)
        if i % 25 == 0:
            postfix = {"acc": meter.accuracy(), "auroc": meter.macro_auroc()}
            show(i, n_batches, **postfix)
    return meter


def main():
    torch.manual_seed(0)
    model = Classifier()
    print(f"train loss {pretrain(model):.3f}")
    meter = evaluate(model, n_batches=100, batch_size=1024)
    print("recall per class", [round(r, 3) for r in meter.per_class_recall()])
    print(f"accuracy {meter.accuracy():.4f}  macro auroc {meter.macro_auroc():.4f}")


if __name__ == "__main__":
    main()
