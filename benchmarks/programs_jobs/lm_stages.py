#OPTS world=2 stack=1 op=TransformerLayer
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe


class Layers(nn.Module):
    def __init__(self, count, width=64, cost=0.0006):
        super().__init__()
        self.projections, self.cost = nn.ModuleList(nn.Linear(width, width) for _ in range(count)), cost * count

    def forward(self, x):
        for projection in self.projections:
            x = torch.tanh(projection(x))
        return TransformerLayer.apply(x, self.cost, 2 * self.cost)


class Head(nn.Module):
    def __init__(self, width=64, vocabulary=512):
        super().__init__()
        self.norm, self.logits = nn.LayerNorm(width), nn.Linear(width, vocabulary)

    def forward(self, x):
        return TransformerLayer.apply(self.logits(self.norm(x)), 0.0012, 0.0024)


def train(rank, world, args):
    depth = 4
    if args.fault:
        split = [depth // world] * world
    else:
        split = [3, 1]
    layers = [Layers(split[rank])]
    if rank == world - 1:
        layers.append(Head())
    chunks = 16
    stage = PipelineStage(nn.Sequential(*layers), rank, world, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, chunks, loss_fn=F.cross_entropy)
    optimizer = torch.optim.SGD(stage.submod.parameters(), lr=0.01)
    with recording(args, rank) as prof:
        for _ in range(args.steps):
            optimizer.zero_grad()
            if rank == 0:
                schedule.step(torch.randn(4 * chunks, 64))
            else:
                schedule.step(target=torch.randint(0, 512, (4 * chunks,)))
            optimizer.step()
            prof.step()
