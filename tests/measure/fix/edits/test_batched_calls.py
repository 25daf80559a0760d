"""A model runs on the whole batch."""

from tests.measure.fix.proposing import change, proposed


def test_a_comprehension_of_samples_is_one_call():
    before, after = change("""
        import torch
        from torch import nn

        model = nn.Linear(4, 4)


        def embed(images):
      -     return torch.cat([model(image.unsqueeze(0)) for image in images])
      +     return model(images)
    """)
    assert proposed(before, "torch.cat", "LCH107", "batched-calls")[0] == after


def test_a_loop_that_appends_is_one_call():
    before, after = change("""
        import torch
        from torch import nn


        class Predictor:
            def __init__(self):
                self.model = nn.Linear(4, 4)

            def predict(self, x):
      -         outs = []
      -         for i in range(len(x)):
      -             outs.append(self.model(x[i : i + 1]).softmax(-1)[0])
      -         return torch.stack(outs)
      +         return self.model(x).softmax(-1)
    """)
    assert proposed(before, "outs.append", "LCH107", "batched-calls")[0] == after


def test_a_list_of_samples_is_stacked():
    before, after = change("""
        import torch
        from torch import nn

        net = nn.Linear(4, 4)
        samples = [torch.rand(4) for _ in range(8)]
        with torch.no_grad():
      -     out = torch.stack([net(s[None])[0].argmax(0) for s in samples])
      +     out = net(torch.stack(samples)).argmax(1)
    """)
    assert proposed(before, "torch.stack", "LCH102", "batched-calls")[0] == after


def test_sums_of_a_batch_stay():
    before = """
        import torch
        from torch import nn

        net = nn.Linear(4, 4)
        out = torch.stack([net(s[None]).sum() for s in x])
    """
    assert not proposed(before, "torch.stack", "LCH107", "batched-calls")


def test_two_inputs_stay():
    before = """
        import torch
        from torch import nn

        net = nn.Linear(4, 4)
        out = torch.cat([net(s[None], s) for s in x])
    """
    assert not proposed(before, "torch.cat", "LCH107", "batched-calls")
