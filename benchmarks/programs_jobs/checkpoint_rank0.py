#OPTS world=2 stack=1 op=BlockOp
import io
import threading


class Saver:
    """Writes state dicts to a slow bucket (about 0.18 s a file)."""

    def __init__(self, background):
        self.background, self.thread = background, None

    def upload(self, blob):
        time.sleep(0.18)
        return len(blob)

    def write_checkpoint(self, state):
        buf = io.BytesIO()
        torch.save(state, buf)
        if self.background:
            if self.thread:
                self.thread.join()
            self.thread = threading.Thread(target=self.upload, args=(buf.getvalue(),))
            self.thread.start()
        else:
            self.upload(buf.getvalue())


def train(rank, world, args):
    net = nn.Sequential(*[nn.Linear(80, 80) for _ in range(3)])
    ddp = DDP(net)
    opt = torch.optim.Adam(ddp.parameters())
    saver = Saver(background=not args.fault)
    with recording(args, rank) as prof:
        for step in range(args.steps):
            h = torch.randn(8, 80)
            h = BlockOp.apply(h.requires_grad_(), 0.012, 0.024)
            h = BlockOp.apply(ddp(h), 0.024, 0.048)
            h.square().mean().backward()
            opt.step()
            opt.zero_grad()
            if step % 5 == 0 and rank == 0:
                saver.write_checkpoint({"model": net.state_dict(), "opt": opt.state_dict(), "step": step})
            prof.step()
