"""What grows is joined once."""

import pytest
from tests.measure.fix.proposing import change, proposed


def test_a_first_turn_that_begins():
    before, after = change("""
        import numpy as np
        import torch


        def gather(model, loader):
            logits = None
      +     logits_parts = []
            for batch in loader:
                out = model(batch).cpu().numpy()
      -         if logits is None:
      -             logits = out
      -         else:
      -             logits = np.concatenate([logits, out], axis=0)
      +         logits_parts.append(out)
      +     if logits_parts:
      +         logits = np.concatenate(logits_parts, axis=0)
            return logits
    """)
    assert proposed(before, "np.concatenate", "HST106", "joined-once")[0] == after
    assert proposed(before, "if logits", "HST106", "joined-once")[0] == after


def test_a_first_turn_by_number():
    before, after = change("""
        import torch


        def gather(model, loader):
      +     feats_parts = []
            for i, batch in enumerate(loader):
                if i == 0:
      -             feats = model(batch)
      +             feats_parts = [model(batch)]
                    names = batch.names
                else:
      -             feats = torch.cat((feats, model(batch)), 0)
      +             feats_parts.append(model(batch))
      +     if feats_parts:
      +         feats = torch.cat(feats_parts, 0)
            return feats, names
    """)
    assert proposed(before, "torch.cat", "CPY013", "joined-once")[0] == after
    read = before.replace("names = batch.names", "names = feats.shape")
    assert not proposed(read, "torch.cat", "CPY013", "joined-once")


BEGUN = """
import torch

def gather(model, loader, buf):
    x = None
    for epoch in range(2):
        for batch in loader:
            out = model(batch)
            if x is None:
                x = out
            else:
                x = torch.cat([x, out])
    return x
"""
ALONE = BEGUN.replace(
    """            if x is None:
                x = out
            else:
                x = torch.cat([x, out])
""",
    """            x = out if x is None else torch.cat([x, out])
""",
)


@pytest.mark.parametrize("text", [BEGUN, ALONE])
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("out = model(batch)", "buf += 1\n            out = buf"),
        ("out = model(batch)", "buf += 1\n            out = buf.view(-1)"),
        ("out = model(batch)", "fill(buf)\n            out = buf"),
        ("out = model(batch)", "opt.step()\n            out = buf.detach()"),
        ("    return x", "            out.mul_(2)\n    return x"),
        ("x = None\n", "x = None\n    cb = lambda: x.sum()\n"),
        ("x = None\n", "x = None\n    def cb():\n        return x.sum()\n"),
        ("x = None\n", "global x\n    x = None\n"),
        ("    x = None\n", ""),  # begun elsewhere
        ("buf):\n    x = None\n", "buf, x=None):\n"),
        ("    return x", "        print(x.shape)\n    return x"),  # grows from one epoch to the next
    ],
)
def test_parts_that_change_and_joins_that_are_seen(text, old, new):
    assert proposed(text, "x = torch.cat" if text is BEGUN else "x = out if", "CPY013", "joined-once")
    assert old in text
    assert not proposed(text.replace(old, new), "torch.cat", "CPY013", "joined-once")


@pytest.mark.parametrize("text", [BEGUN, ALONE])
def test_a_loop_that_a_handler_ends(text):
    head, _, loop = text.partition("    for epoch")
    loop = "    for epoch" + loop.replace("    return x\n", "")
    indented = "".join(f"    {row}\n" for row in loop.splitlines())
    tried = f"{head}    try:\n{indented}    except KeyboardInterrupt:\n        pass\n    return x\n"
    assert not proposed(tried, "torch.cat", "CPY013", "joined-once")


def test_a_recorder_of_what_is_changed_in_place():
    before = """
        import torch


        class Recorder:
            def __init__(self, n):
                self.state = torch.zeros(n)
                self.raster = torch.empty(0, n)

            def add(self, x):
                self.state += x
                self.raster = torch.cat([self.raster, self.state.unsqueeze(0)])

            def rates(self):
                return self.raster.mean(0)
    """
    assert not proposed(before, "self.raster = torch.cat", "CPY013", "joined-once")
    again = before.replace("self.state += x", "self.state = self.state + x")
    assert proposed(again, "self.raster = torch.cat", "CPY013", "joined-once")
