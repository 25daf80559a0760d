"""The result of a forward pass is used again."""

from tests.measure.fix.proposing import change, proposals, proposed


def test_the_first_result_is_used_again():
    before, after = change("""
        import torch
        from torch import nn

        model = nn.Linear(4, 4)
        for x, y in loader:
            logits = model(x)
            loss = nn.functional.cross_entropy(logits, y)
      -     acc = (model(x).argmax(1) == y).float().mean()
      +     acc = (logits.argmax(1) == y).float().mean()
            loss.backward()
    """)
    assert proposed(before, "acc =", "LCH103", "repeated-forward")[0] == after


def test_a_result_gets_a_name():
    before, after = change("""
        import torch
        from torch import nn


        class Trainer:
            def __init__(self):
                self.model = nn.Linear(4, 4)

            def training_step(self, x, y):
      -         loss = nn.functional.cross_entropy(self.model(x), y)
      -         acc = (self.model(x).argmax(1) == y).float().mean()
      +         output = self.model(x)
      +         loss = nn.functional.cross_entropy(output, y)
      +         acc = (output.argmax(1) == y).float().mean()
                return loss, acc
    """)
    assert proposed(before, "acc =", "LCH103", "repeated-forward")[0] == after


def test_a_teacher_runs_once_for_each_batch():
    before, after = change("""
        import torch
        from torch import nn
        from torch.utils.data import DataLoader

        teacher = nn.Linear(4, 4)
        student = nn.Linear(4, 4)
        loader = DataLoader(data, batch_size=8)
      + teacher_outputs = {}
        for epoch in range(10):
      -     for x in loader:
      +     for step, x in enumerate(loader):
                with torch.no_grad():
      -             soft = teacher(x)
      +             if step not in teacher_outputs:
      +                 teacher_outputs[step] = teacher(x)
      +             soft = teacher_outputs[step]
                loss = (student(x) - soft).pow(2).mean()
                loss.backward()
    """)
    assert proposed(before, "soft =", "LCH111", "repeated-forward")[0] == after


def test_shuffled_batches_stay():
    before = """
        import torch
        from torch import nn
        from torch.utils.data import DataLoader

        teacher = nn.Linear(4, 4)
        student = nn.Linear(4, 4)
        loader = DataLoader(data, batch_size=8, shuffle=True)
        for epoch in range(10):
            for x in loader:
                soft = teacher(x)
                loss = (student(x) - soft).pow(2).mean()
                loss.backward()
    """
    assert not proposed(before, "soft =", "LCH111", "repeated-forward")


def test_a_step_between_stays():
    before = """
        import torch
        from torch import nn

        model = nn.Linear(4, 4)
        for x, y in loader:
            before = model(x)
            before.sum().backward()
            optimizer.step()
            after = model(x)
    """
    assert not proposed(before, "after =", "LCH103", "repeated-forward")


def test_a_teacher_that_follows_stays():
    before = """
        import torch
        from torch import nn
        from torch.utils.data import DataLoader

        teacher = nn.Linear(4, 4)
        student = nn.Linear(4, 4)
        loader = DataLoader(data, batch_size=8)
        for epoch in range(10):
            for x in loader:
                soft = teacher(x)
                loss = (student(x) - soft).pow(2).mean()
                loss.backward()
            follow(teacher, student)
    """
    assert not proposed(before, "soft =", "LCH111", "repeated-forward")


def test_running_statistics_move_once():
    before = """
        from torch import nn

        model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
        for x, y in loader:
            logits = model(x)
            acc = (model(x).argmax(1) == y).float().mean()
    """
    assert all(item.changes for item in proposals(before, "acc =", "LCH103", "repeated-forward"))
