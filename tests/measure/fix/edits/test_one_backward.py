"""Losses of one forward pass go backward together."""

import pytest
from tests.measure.fix.proposing import change, proposed, source


@pytest.mark.parametrize(
    "rows",
    [
        [
            "  a, b = loss(out, y), aux(out)",
            "- a.backward(retain_graph=True)",
            "- b.backward()",
            "+ (a + b).backward()",
        ],
        [
            "  a = loss(out, y)",
            "- a.backward(retain_graph=True)",
            "  b = (out - y).square().mean()",
            "- (0.1 * b).backward()",
            "+ (a + 0.1 * b).backward()",
        ],
        [
            "- for part in (loss(out, y), aux(out)):",
            "-     part.backward(retain_graph=True)",
            "+ sum((loss(out, y), aux(out))).backward(retain_graph=True)",
        ],
        [
            "  losses = [head(out, y) for head in heads]",
            "- for part in losses:",
            "-     part.backward(retain_graph=True)",
            "+ if losses:",
            "+     sum(losses).backward(retain_graph=True)",
        ],
    ],
)
def test_one_pass(rows):
    before, after = change("\n".join([*rows, ""]))
    assert proposed(before, "retain_graph", "OPT102", "one-backward") == [source(after)]
    assert not proposed(after, "backward", "OPT102", "one-backward")


@pytest.mark.parametrize(
    "between",
    [
        "optimizer.step()",
        "norm = weight.grad.norm()",
        "out += 1",
        "a = loss(out, y)",
        "clip_grad_norm_(model.parameters(), 1)",
        "norm = grad_norm(model)",
    ],
)
def test_gradients_of_the_first_are_needed(between):
    before = f"a, b = loss(out, y), aux(out)\na.backward(retain_graph=True)\n{between}\nb.backward()\n"
    assert not proposed(before, "retain_graph", "OPT102", "one-backward")


@pytest.mark.parametrize(
    "text",
    [
        "a.backward()\nb.backward()\n",
        "a.backward(retain_graph=True)\nb.backward()\ng = torch.autograd.grad(a, w)\n",
        "a.backward(retain_graph=True)\nb.backward()\n(a * 2).backward()\n",
        "a.backward(retain_graph=True)\nb.backward()\nw.register_hook(lambda g: g.clamp(-1, 1))\n",
        "a.backward(retain_graph=True)\nb.backward()\nclass Loss:\n    def backward(self):\n        pass\n",
        "for part in losses:\n    part.backward(retain_graph=True)\n",
        "for part in [*main, *aux]:\n    part.backward(retain_graph=True)\n",
        "losses = torch.stack(parts)\nfor part in losses: part.backward(retain_graph=True)\n",
        "a.backward(torch.ones(3), retain_graph=True)\nb.backward()\n",
        "a.backward(retain_graph=True, create_graph=True)\nb.backward()\n",
        "for part in parts():\n    part.backward(retain_graph=True)\n",
        "for part in losses:\n    part.backward(retain_graph=True)\nprint(part)\n",
        "for part in losses:\n    part.backward(retain_graph=True)\n    optimizer.step()\n",
    ],
)
def test_other_passes_stay(text):
    assert not proposed(text, 1, "OPT102", "one-backward")
    assert not proposed(text, 2, "OPT102", "one-backward")


def test_a_loss_that_the_next_turn_shows_stays():
    text = "for x in rows:\n    print(part)\n    for part in (a, b):\n        part.backward(retain_graph=True)\n"
    assert not proposed(text, 4, "OPT102", "one-backward")
