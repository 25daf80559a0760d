#OPTS world=3 stack=1 op=StageOp
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

D = 64


class StageModule(nn.Module):
    def __init__(self, layers):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(D, D) for _ in range(layers))

    def forward(self, x):
        for l in self.layers:
            x = x + StageOp.apply(torch.tanh(l(x)), 0.0020, 0.004)
        return x


def train(rank, world, args):
    split = (2, 4, 2) if args.fault else (3, 3, 2)
    module = StageModule(split[rank])
    stage = PipelineStage(module, rank, world, torch.device("cpu"))
    schedule_ = ScheduleGPipe(stage, n_microbatches=6, loss_fn=lambda y, t: F.mse_loss(y, t))
    opt = torch.optim.SGD(module.parameters(), lr=1e-3)
    g = torch.Generator().manual_seed(5)
    with recording(args, rank) as prof:
        for step in range(args.steps):
            x, t = torch.randn(12, D, generator=g), torch.randn(12, D, generator=g)
            opt.zero_grad()
            if rank == 0:
                schedule_.step(x)
            elif rank == world - 1:
                schedule_.step(target=t)
            else:
                schedule_.step()
            opt.step()
            prof.step()
