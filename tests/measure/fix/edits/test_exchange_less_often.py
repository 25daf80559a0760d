from measure.fix.proposing import proposals, proposed

EDIT = "exchange-less-often"
SCRIPT = """
import torch
from torch.nn.parallel import DistributedDataParallel as DDP

model = DDP(torch.nn.Linear(4, 4))
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for i, x in enumerate(torch.randn(64, 8, 4)):
    x = x + 1
    out = model(x)
    loss = out.mean() / 4
    loss.backward()
    if (i + 1) % 4 == 0:
        opt.step()
        opt.zero_grad()
"""


def test_micro_batches_of_a_script():
    (after,) = proposed(SCRIPT, "loss.backward", "COM038", EDIT)
    assert "DDP\nfrom contextlib import nullcontext\n" in after
    assert (
        """    x = x + 1
    with nullcontext() if (i + 1) % 4 == 0 else model.no_sync():
        out = model(x)
        loss = out.mean() / 4
        loss.backward()
    if (i + 1) % 4 == 0:
"""
        in after
    )
    assert not proposed(after, "loss.backward", "COM038", EDIT)


def test_a_logged_number_of_each_rank():
    before = """
        class Module(LightningModule):
            def training_step(self, batch, index):
                self.log("loss", self.loss(batch), sync_dist=True)
    """
    (after,) = proposed(before, "self.log", "COM101", EDIT)
    assert "sync_dist=False" in after
    assert proposals(before, "self.log", "COM101", EDIT)[0].changes


def test_nothing_where_every_batch_is_a_step():
    before = SCRIPT.replace(
        "    if (i + 1) % 4 == 0:\n        opt.step()\n        opt.zero_grad()\n", "    opt.step()\n"
    )
    assert not proposed(before, "loss.backward", "COM038", EDIT)


def test_nothing_where_the_test_changes_before_it_is_asked():
    before = SCRIPT.replace("    if (i + 1) % 4 == 0:", "    n += 1\n    if n % 4 == 0:")
    assert not proposed(before, "loss.backward", "COM038", EDIT)


def test_a_barrier_may_be_needed():
    before = """
        import torch.distributed as dist

        for x in loader:
            model(x).mean().backward()
            dist.barrier()
    """
    assert proposals(before, "dist.barrier", "COM101", EDIT)[0].changes
