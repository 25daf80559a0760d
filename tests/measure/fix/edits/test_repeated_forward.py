"""The result of a forward pass is used again."""

from tests.measure.fix.proposing import proposals


def test_running_statistics_move_once():
    before = """
        from torch import nn

        model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
        for x, y in loader:
            logits = model(x)
            acc = (model(x).argmax(1) == y).float().mean()
    """
    assert all(item.changes for item in proposals(before, "acc =", "LCH103", "repeated-forward"))
