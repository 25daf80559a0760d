"""A profiler records a few steps."""

from tests.measure.fix.proposing import change, proposals, proposed


def test_a_loop_under_a_profiler_is_scheduled():
    before, after = change("""
        import torch
        from torch.profiler import ProfilerActivity, profile

      - with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as prof:
      + few_steps = torch.profiler.schedule(wait=1, warmup=1, active=3, repeat=1)
      + with profile(activities=[ProfilerActivity.CPU], record_shapes=True, schedule=few_steps) as prof:
            for x, y in loader:
                loss = model(x).sum()
                loss.backward()
                optimizer.step()
      +         prof.step()
        prof.export_chrome_trace("trace.json")
    """)
    assert proposed(before, "profile(", "MSR045", "profiled-steps")[0] == after


def test_a_trainer_under_a_profiler():
    before, after = change("""
        import torch


        class Trainer:
            def fit(self):
      -         with torch.profiler.profile() as prof:
      +         few_steps = torch.profiler.schedule(wait=1, warmup=1, active=3, repeat=1)
      +         with torch.profiler.profile(schedule=few_steps) as prof:
                    for epoch in range(3):
                        for x, y in self.loader:
                            loss = self.model(x).sum()
                            loss.backward()
                            self.optimizer.step()
      +                     prof.step()
                print(prof.key_averages().table())
    """)
    assert proposed(before, "torch.profiler.profile(", "MSR045", "profiled-steps")[0] == after


def test_steps_of_a_while_loop():
    before, after = change("""
        import torch

      - with torch.profiler.profile(with_stack=True) as prof:
      + few_steps = torch.profiler.schedule(wait=1, warmup=1, active=3, repeat=1)
      + with torch.profiler.profile(with_stack=True, schedule=few_steps) as prof:
            while step < 100:
                train(step)
                step += 1
      +         prof.step()
    """)
    assert proposed(before, "torch.profiler.profile(", "MSR045", "profiled-steps")[0] == after


def test_a_schedule_stays():
    before = """
        import torch

        with torch.profiler.profile(schedule=plan) as prof:
            for x in loader:
                train(x)
                prof.step()
    """
    assert not proposed(before, "torch.profiler.profile(", "MSR045", "profiled-steps")


def test_a_shorter_profile_is_said():
    before = """
        import torch

        with torch.profiler.profile() as prof:
            for x in loader:
                train(x)
        print(prof.key_averages())
    """
    assert proposals(before, "torch.profiler.profile(", "MSR045", "profiled-steps")[0].changes
