"""What grows is joined once."""

from tests.measure.fix.proposing import change, proposed


def test_predictions_of_a_loop_are_joined_after_it():
    before, after = change("""
        import torch


        def predict(model, loader):
            preds = torch.empty(0)
      +     preds_parts = [preds]
            for x in loader:
      -         preds = torch.cat([preds, model(x)], dim=0)
      +         preds_parts.append(model(x))
      +     preds = torch.cat(preds_parts, dim=0)
            return preds
    """)
    assert proposed(before, "preds = torch.cat", "CPY013", "joined-once")[0] == after


def test_a_recorder_joins_where_it_is_read():
    before, after = change("""
        import torch


        class Recorder:
            def __init__(self, n):
      -         self.raster = torch.empty(0, n)
      +         self.raster = [torch.empty(0, n)]

            def add(self, spikes):
      -         self.raster = torch.cat([self.raster, spikes.unsqueeze(0)])
      +         self.raster.append(spikes.unsqueeze(0))

            def rates(self):
      -         return self.raster.mean(0)
      +         return torch.cat(self.raster).mean(0)
    """)
    assert proposed(before, "self.raster = torch.cat", "CPY013", "joined-once")[0] == after


def test_a_first_part_that_is_none():
    before, after = change("""
        import numpy as np


        def gather(stream):
            scores = None
      +     scores_parts = []
            for s in stream:
      -         scores = s if scores is None else np.concatenate([scores, s])
      +         scores_parts.append(s)
      +     scores = np.concatenate(scores_parts) if scores_parts else None
            return scores
    """)
    assert proposed(before, "np.concatenate", "HST106", "joined-once")[0] == after


def test_what_is_read_in_each_turn_stays():
    before = """
        import torch

        for _ in range(10):
            nxt = model(ids)
            ids = torch.cat([ids, nxt], dim=1)
    """
    assert not proposed(before, "ids = torch.cat", "CPY013", "joined-once")
