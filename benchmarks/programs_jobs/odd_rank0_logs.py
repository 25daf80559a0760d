#OPTS world=4 stack=0 op=PolicyOp
TWIN = False


def log_line(step, loss):
    time.sleep(0.0008)  # a line to the console
    return f"step {step}: loss {loss:.4f}"


def train(rank, world, args):
    actor = nn.Sequential(nn.Linear(12, 64), nn.Tanh(), nn.Linear(64, 4))
    model = DDP(actor)
    opt = torch.optim.SGD(model.parameters(), lr=0.01)
    lines = []
    with recording(args, rank) as prof:
        for step in range(args.steps):
            obs = PolicyOp.apply(torch.randn(10, 12, requires_grad=True), 0.02, 0.04)
            out = PolicyOp.apply(model(obs), 0.03, 0.06)
            loss = out.var()
            loss.backward()
            opt.step()
            opt.zero_grad()
            if rank == 0:
                lines.append(log_line(step, loss.item()))
            if step % 10 == 9:
                mean = loss.detach().clone()
                dist.all_reduce(mean)
            prof.step()
