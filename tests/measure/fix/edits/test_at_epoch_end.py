"""A callback computes what is of the whole epoch once."""

import pytest
from tests.measure.fix.proposing import proposals, proposed, source

BEFORE = """
    class AUCMeter(Callback):
        def on_batch_end(self, trainer, logits, target):
            self.scores.append(logits)
            trainer.metrics["auc"] = roc_auc(self.scores)  # so far

        def on_epoch_end(self, trainer):
            pass
"""
AFTER = BEFORE.replace('            trainer.metrics["auc"] = roc_auc(self.scores)  # so far\n', "").replace(
    "pass", 'trainer.metrics["auc"] = roc_auc(self.scores)'
)


def test_it_is_computed_at_the_end_of_the_epoch():
    assert proposed(BEFORE, "roc_auc", "HST106", "at-epoch-end") == [source(AFTER)]
    assert proposals(BEFORE, "roc_auc", "HST106", "at-epoch-end")[0].changes
    assert not proposed(AFTER, "roc_auc", "HST106", "at-epoch-end")
    used = BEFORE.replace("pass", "print(trainer.epoch)")
    after = AFTER.replace("= roc_auc(self.scores)", "= roc_auc(self.scores)\n            print(trainer.epoch)")
    assert proposed(used, "roc_auc", "HST106", "at-epoch-end") == [source(after)]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("roc_auc(self.scores)", "roc_auc(logits)"),  # of the batch
        ("on_epoch_end", "on_fit_end"),
        ("roc_auc(self.scores)", 'trainer.metrics["auc"] + roc_auc(self.scores)'),
        ('trainer.metrics["auc"] =', "auc ="),
        ("pass", 'trainer.metrics["auc"] = 0'),
    ],
)
def test_what_is_of_the_batch_stays(old, new):
    assert not proposed(BEFORE.replace(old, new), "roc_auc", "HST106", "at-epoch-end")
