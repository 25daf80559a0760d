#OPTS world=3 stack=0 op=PartOp
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe


class Part(nn.Module):
    """Time goes with the number of samples of the micro-batch."""

    def __init__(self, d=48):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(d, d), nn.Linear(d, d)

    def forward(self, x):
        t = 0.0018 * x.shape[0]
        return self.fc2(PartOp.apply(torch.relu(self.fc1(x)), t, 2 * t))


class PipelineTrainer:
    def __init__(self, rank, world, n_micro):
        self.rank, self.world = rank, world
        self.part = Part()
        self.stage = PipelineStage(self.part, rank, world, torch.device("cpu"))
        self.sched = ScheduleGPipe(self.stage, n_micro, loss_fn=F.mse_loss)
        self.opt = torch.optim.SGD(self.part.parameters(), lr=1e-3)

    def train_step(self):
        x, y = torch.randn(12, 48), torch.randn(12, 48)
        if self.rank == 0:
            self.sched.step(x)
        elif self.rank == self.world - 1:
            losses = []
            self.sched.step(target=y, losses=losses)
        else:
            self.sched.step()
        self.opt.step()
        self.opt.zero_grad()


def train(rank, world, args):
    trainer = PipelineTrainer(rank, world, n_micro=2 if args.fault else 6)
    with recording(args, rank) as prof:
        for _ in range(args.steps):
            trainer.train_step()
            prof.step()
