#OPTS world=3 stack=0 op=BackboneOp
import numpy as np


class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 16, 3)
        self.head = nn.Linear(16, 12)

    def forward(self, x):
        h = BackboneOp.apply(self.conv(x), 0.03, 0.06)
        return self.head(h.mean((2, 3)))


def collect_predictions(preds, world):
    everything = [None] * world
    dist.all_gather_object(everything, preds)
    return everything


def train(rank, world, args):
    model = DDP(Detector())
    opt = torch.optim.SGD(model.parameters(), lr=0.01)
    store = []
    boxes = np.zeros((400, 300), dtype=np.float32)  # dense predictions of this batch, kept for the curves
    with recording(args, rank) as prof:
        for it in range(args.steps):
            loss = model(torch.randn(2, 3, 8, 8)).pow(2).mean()
            loss.backward()
            opt.step()
            opt.zero_grad(set_to_none=True)
            preds = {"it": it, "rank": rank, "boxes": boxes + it}
            if args.fault:
                store.extend(collect_predictions(preds, world))
            else:
                store.append(preds)  # gathered once, at the end of the epoch
            prof.step()
    if not args.fault:
        store = collect_predictions(store, world)
