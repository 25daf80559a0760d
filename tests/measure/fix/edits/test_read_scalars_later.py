import pytest
from tests.measure.fix.proposing import proposed

EDIT = "read-scalars-later"


def test_sums_of_a_loop_are_read_after_it():
    before = """
        import torch

        def evaluate(model, loader):
            total, correct, n = 0.0, 0, 0
            for x, y in loader:
                out = model(x)
                total += loss_fn(out, y).item() * x.size(0)
                correct += (out.argmax(1) == y).sum().item()
                n += x.size(0)
            return total / n, correct / n
    """
    (after,) = proposed(before, "total += ", "SYN001", EDIT)
    assert "total += loss_fn(out, y).detach() * x.size(0)\n" in after
    assert "correct += (out.argmax(1) == y).sum().detach()\n" in after
    assert "        n += x.size(0)\n    total = float(total)\n" in after
    # whole numbers where a count is read, others where a mean is, and the 0 where no turn adds any
    assert "    if torch.is_tensor(correct):\n        correct = correct.item()\n    return" in after
    assert not proposed(after, "total += ", "SYN001", EDIT)


def test_nothing_where_each_step_uses_the_value():
    before = """
        def fit(model, loader):
            best, history = 1e9, []
            for x in loader:
                loss = model(x).mean()
                value = loss.item()
                best = min(best, value)
                history.append(loss.item())
                scheduler.step(history[-1])
    """
    assert not proposed(before, "value = ", "SYN001", EDIT)
    assert not proposed(before, "history.append", "SYN001", EDIT)


SPIKES = """
import torch

def fit(model, loader, state):
    spikes = []
    for x in loader:
        loss = model(x).mean()
        if loss > 1e6:
            spikes.append(loss.item())
    return spikes
"""


def test_a_list_that_may_stay_empty():
    (after,) = proposed(SPIKES, "spikes.append", "SYN001", EDIT)
    assert "    if spikes:\n        spikes = torch.stack(spikes).flatten().tolist()\n    return" in after
    (after,) = proposed(SPIKES.replace("import torch\n", "from x import y\n"), "spikes.append", "SYN001", EDIT)
    assert "import torch\n" in after


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("spikes = []", 'spikes = state["spikes"]'),  # numbers of an earlier run
        ("spikes = []", "spikes = state.spikes = []"),
        ("spikes = []", "spikes = []\n    spikes.append(0.5)"),
        ("spikes = []", "spikes = []\n    report = lambda: print(spikes)"),
        ("spikes = []", "spikes = []\n    def report():\n        print(spikes)"),
        ("loss.item()", "float(state)"),  # no tensor
        ("            spikes.append", "            print(f'{max(spikes):.2f}')\n            spikes.append"),
    ],
)
def test_a_list_that_is_more_than_what_is_read(old, new):
    assert not proposed(SPIKES.replace(old, new), "loss = model", "SYN001", EDIT)


@pytest.mark.parametrize(
    ("start", "value"),
    [
        ("torch.zeros(3)", "x.mean().item()"),
        ('""', "names[x.argmax().item()]"),
        ("0.0", "names[x.argmax().item()]"),
        ("0.0", "math.log(x.mean().item())"),
    ],
)
def test_sums_of_something_else(start, value):
    before = f"""
        import torch

        def f(loader, names):
            total = {start}
            for x in loader:
                total += {value}
            return total
    """
    assert not proposed(before, "total += ", "SYN001", EDIT)
    assert proposed(before.replace(start, "0.0").replace(value, "x.mean().item()"), "total += ", "SYN001", EDIT)


def test_a_tensor_that_is_changed_after_it_is_kept():
    changed = SPIKES.replace("    return", "        loss.div_(2)\n    return")
    (after,) = proposed(changed, "spikes.append", "SYN001", EDIT)
    assert "spikes.append(loss.detach().clone())" in after


def test_a_count_that_is_cast_in_one_of_two_branches():
    before = """
        import torch

        def evaluate(model, loader, clean):
            correct, total = 0, 0.0
            if clean:
                for x, y in loader:
                    correct += int((model(x).argmax(1) == y).sum())
            else:
                for x, y in loader:
                    correct += int((model(attack(x)).argmax(1) == y).sum().item())
                    total += float(loss_fn(x, y).detach().cpu().numpy())
            return correct
    """
    for line, value in (("model(x)", "model(x)"), ("attack", "model(attack(x))")):
        (after,) = proposed(before, line, "SYN001", EDIT)
        assert f"correct += ({value}.argmax(1) == y).sum().detach()\n" in after
        assert "        if torch.is_tensor(correct):\n            correct = int(correct)\n" in after
    # a whole number of something else than a count cuts off what the sum would keep
    mean = before.replace("model(x).argmax(1) == y).sum()", "model(x).argmax(1) == y).float().mean()")
    assert not proposed(mean, "model(x)", "SYN001", EDIT)
    # both loops run: the second begins with what the first has read
    (after,) = proposed(before.replace("else:", "if not clean:"), "attack", "SYN001", EDIT)
    assert "correct = int" not in after
