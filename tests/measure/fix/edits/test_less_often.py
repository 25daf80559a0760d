"""Reports, checkpoints and evaluations run every so many steps."""

from tests.measure.fix.proposing import proposals


def test_a_metric_that_adds_up_every_batch_says_so():
    before = """
        for step, (x, y) in enumerate(loader):
            metric.update(model(x), y)
            if step % 10 == 0:
                print(metric.compute())
    """
    assert all(item.changes for item in proposals(before, "metric.update", "HST106", "less-often"))
