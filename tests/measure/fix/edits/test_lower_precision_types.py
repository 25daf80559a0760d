from measure.fix.proposing import proposals, proposed

EDIT = "lower-precision-types"


def test_an_array_becomes_a_tensor_of_float32():
    before = """
        import numpy as np
        import torch

        data = np.random.rand(100, 4)
        for row in data:
            x = torch.from_numpy(row).to("cpu")
            y = torch.tensor(np.ones(4))
    """
    (after,) = proposed(before, "x = torch", "CPY012", EDIT)
    assert 'torch.from_numpy(row).float().to("cpu")' in after
    (after,) = proposed(after, "y = torch", "CPY012", EDIT)
    assert "torch.tensor(np.ones(4), dtype=torch.float32)" in after
    assert not proposed(after, "x = torch", "CPY012", EDIT) + proposed(after, "y = torch", "CPY012", EDIT)


def test_a_cast_in_forward_goes_with_its_buffers():
    before = """
        import torch
        from torch import nn

        class Policy(nn.Module):
            def __init__(self):
                super().__init__()
                self.fc = nn.Linear(4, 4)
                self.register_buffer("mean", torch.zeros(4, dtype=torch.float64))

            def forward(self, x):
                return self.fc((x.double() - self.mean).float())
    """
    (after,) = proposed(before, "x.double()", "CPY012", EDIT)
    assert "dtype=torch.float32" in after
    assert "(x.float() - self.mean).float()" in after
    assert not proposed(after, "x.float()", "CPY012", EDIT)


def test_a_model_in_float64_gets_float32_and_so_do_its_inputs():
    before = """
        import torch
        from torch import nn

        model = nn.Linear(4, 1).double().to("cpu")
        loss_fn = nn.MSELoss()
        for x, y in loader:
            loss = loss_fn(model(x), y)
            loss.backward()
    """
    (after,) = proposed(before, "loss.backward", "CPY012", EDIT)
    assert 'nn.Linear(4, 1).to("cpu")' in after
    assert "loss_fn(model(x.float()), y.float())" in after
    assert proposals(before, "loss.backward", "CPY012", EDIT)[0].changes


def test_a_frozen_weight_is_converted_once():
    before = """
        import torch
        from torch import nn

        class Conv(nn.Module):
            def __init__(self):
                super().__init__()
                self.weight = nn.Parameter(torch.randn(4, 4).bfloat16(), requires_grad=False)
                self.free = nn.Parameter(torch.randn(4, 4).bfloat16())

            def forward(self, x):
                w = self.weight.to(torch.float32)
                v = self.free.to(torch.float32)
                return x @ w @ v
    """
    (after,) = proposed(before, "w = self.weight", "CPY012", EDIT)
    assert "nn.Parameter(torch.randn(4, 4).bfloat16().to(torch.float32), requires_grad=False)" in after
    assert "w = self.weight\n" in after
    assert not proposed(before, "v = self.free", "CPY012", EDIT)
    assert not proposed(after, "w = self.weight", "CPY012", EDIT)


def test_sums_in_float64_are_said_to_change():
    before = """
        import torch

        total = torch.zeros((), dtype=torch.float64)
        for x in loader:
            total += x.double().sum()
    """
    assert all(item.changes for item in proposals(before, "x.double()", "CPY012", EDIT))
