"""A profiler records a few steps."""

from tests.measure.fix.proposing import proposals


def test_a_shorter_profile_is_said():
    before = """
        import torch

        with torch.profiler.profile() as prof:
            for x in loader:
                train(x)
        print(prof.key_averages())
    """
    assert proposals(before, "torch.profiler.profile(", "MSR045", "profiled-steps")[0].changes
