"""What does not depend on the turn is computed before the loop."""

from tests.measure.fix.proposing import change, proposed


def test_a_table_and_what_is_made_of_it_move_before_a_loop():
    before, after = change("""
        import torch

      + bins = torch.linspace(0, 1, 64)
      + weights = bins.square()
        for step in range(100):
            x = torch.randn(8, 64)
            # where the bins begin
      -     bins = torch.linspace(0, 1, 64)
      -     weights = bins.square()
            y = (x * weights).sum()
    """)
    assert proposed(before, "bins =", "HST114", "hoist-from-loop")[0] == after


def test_a_part_moves_out_of_all_loops_it_does_not_need():
    before, after = change("""
        import numpy as np


        def main(loader, model):
      +     loaded = np.load("mean.npy")
            for epoch in range(3):
                for x in loader:
      -             batch = x - np.load("mean.npy")
      +             batch = x - loaded
                    model(batch)
    """)
    assert proposed(before, "batch =", "HST103", "hoist-from-loop")[0] == after


def test_a_loss_is_made_once_in_a_trainer():
    before, after = change("""
        import torch
        from torch import nn


        class Trainer:
            def fit(self, loader):
      +         cross_entropy_loss = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0]))
                for x, y in loader:
      -             loss = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0]))(self.model(x), y)
      +             loss = cross_entropy_loss(self.model(x), y)
                    loss.backward()
    """)
    assert proposed(before, "loss =", "HST105", "hoist-from-loop")[0] == after


def test_statements_beside_each_other_move_together():
    before, after = change("""
        import torch


        def run(model, batches):
      +     mean = torch.tensor([0.1, 0.2]).view(1, 2)
      +     std = torch.tensor(
      +         [0.1, 0.2],
      +     ).view(1, 2)
            for step, batch in enumerate(batches):
                if step > 3:
      -             mean = torch.tensor([0.1, 0.2]).view(1, 2)
      -             std = torch.tensor(
      -                 [0.1, 0.2],
      -             ).view(1, 2)
                    batch = (batch - mean) / std
                model(batch)
    """)
    assert proposed(before, "mean =", "HST114", "hoist-from-loop")[0] == after


def test_a_loader_is_made_once_for_all_epochs():
    before, after = change("""
        from torch.utils.data import DataLoader


        def run(model, dataset, optimizer):
      +     data_loader = DataLoader(dataset, batch_size=16, shuffle=True)
            for epoch in range(10):
      -         for x, y in DataLoader(dataset, batch_size=16, shuffle=True):
      +         for x, y in data_loader:
                    model(x).sum().backward()
                    optimizer.step()
    """)
    assert proposed(before, "for x, y in", "DAT107", "hoist-from-loop")[0] == after


def test_what_is_written_to_stays():
    before = """
        import torch

        for step in range(100):
            buf = torch.zeros(8)
            buf[step % 8] = 1
            use(buf)
    """
    assert not proposed(before, "buf =", "HST114", "hoist-from-loop")


def test_what_is_drawn_stays():
    before = """
        import torch

        for step in range(100):
            noise = torch.randn(8) + step_size
            use(noise)
    """
    assert not proposed(before, "noise =", "HST114", "hoist-from-loop")


def test_what_the_loop_changes_stays():
    before = """
        import torch

        n = 3
        for step in range(100):
            w = torch.linspace(0, 1, n)
            n = n + 1
            use(w)
    """
    assert not proposed(before, "w = torch", "HST114", "hoist-from-loop")


def test_what_training_changes_stays():
    before = """
        import torch

        weight = torch.nn.Parameter(torch.ones(3))
        optimizer = torch.optim.SGD([weight], lr=0.1)
        for step in range(100):
            norm = torch.linalg.norm(weight)
            norm.backward()
            optimizer.step()
    """
    assert not proposed(before, "norm =", "HST114", "hoist-from-loop")


def test_a_file_that_the_loop_writes_is_read_again():
    before = """
        import json

        for step in range(100):
            known = json.load(open("state.json"))
            with open("state.json", "w") as f:
                f.write(str(step))
    """
    assert not proposed(before, "known =", "HST103", "hoist-from-loop")


def test_what_code_elsewhere_may_change_stays():
    before = """
        import torch
        from annealing import anneal

        for step in range(100):
            noise = torch.full((8,), schedule.value)
            use(noise)
            {}
    """
    for call in ("schedule.advance()", "anneal(schedule)", "anneal(step, of=schedule)"):
        assert not proposed(before.format(call), "noise =", "HST114", "hoist-from-loop")
    assert proposed(before.format("other.advance()"), "noise =", "HST114", "hoist-from-loop")


def test_what_a_function_of_the_file_changes_for_all_stays():
    before = """
        import torch

        def advance():
            {}

        for step in range(100):
            noise = torch.full((8,), schedule.value)
            use(noise)
            advance()
    """
    for line in ("schedule.value *= 0.5", "schedule.advance()", "anneal(schedule)"):
        assert not proposed(before.format(line), "noise =", "HST114", "hoist-from-loop")
    assert proposed(before.format("print(3)"), "noise =", "HST114", "hoist-from-loop")


def test_a_function_called_sort_does_not_change_its_library():
    before, after = change("""
        import torch


        def nearest(x):
            return torch.sort(x)[0]


      + arange = torch.arange(8)
        for x in batches:
      -     y = nearest(x) * torch.arange(8)
      +     y = nearest(x) * arange
    """)
    assert proposed(before, "y =", "LCH105", "hoist-from-loop") == [after]


def test_what_each_turn_keeps_for_itself_stays():
    before = """
        import torch

        for step in range(4):
            frames.append(torch.zeros(84, 84))
    """
    assert not proposed(before, "append", "LCH105", "hoist-from-loop")
    assert proposed(before.replace("append(", "append(x + "), "append", "LCH105", "hoist-from-loop")
