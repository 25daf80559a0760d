from measure.fix.proposing import proposed

EDIT = "detach-what-is-kept"
SCRIPT = """
import torch

model = torch.nn.Linear(4, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
total, outputs, seen = 0.0, [], {}
for step, x in enumerate(torch.randn(100, 8, 4)):
    out = model(x)
    loss = out.square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
"""


def test_a_sum_of_losses():
    (after,) = proposed(SCRIPT + "    total += loss * x.size(0)\n", "total +=", "MEM029", EDIT)
    assert "total += loss.detach() * x.size(0)" in after
    assert not proposed(after, "total +=", "MEM029", EDIT)


def test_a_list_of_tuples_and_entries():
    (after,) = proposed(SCRIPT + "    outputs.append((step, out, loss))\n", "outputs.append", "MEM029", EDIT)
    assert "outputs.append((step, out.detach(), loss.detach()))" in after
    (after,) = proposed(SCRIPT + "    seen[step] = out.mean(1)\n", "seen[step]", "MEM029", EDIT)
    assert "seen[step] = out.mean(1).detach()" in after


def test_nothing_where_the_sum_is_differentiated():
    before = """
        import torch

        def train(model, loader):
            total = 0.0
            for x in loader:
                total = total + model(x).mean()
            loss = total / len(loader)
            loss.backward()
    """
    assert not proposed(before, "total = total +", "MEM029", EDIT)
    assert not proposed(SCRIPT + "    total += loss.item()\n", "total +=", "MEM029", EDIT)
