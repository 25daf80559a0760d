"""What is made of settings alone is made once."""

from tests.measure.fix.proposing import change, proposed


def test_what_others_set_stays():
    before = """
        import torch
        from torch import nn
        class Net(nn.Module):
            def __init__(self, n, beta):
                super().__init__()
                self.n, self.beta = n, beta
            def forward(self, x):
                ramp = torch.linspace(0, self.beta, self.n)
                return x * ramp
        class Trainer:
            def __init__(self, model):
                self.model = model
            def fit(self, x):
                {}
    """
    for line in ("self.model.beta = 0.5", 'setattr(self.model, "beta", 0.5)', "model.beta = 0.5"):
        assert not proposed(before.format(line), "ramp =", "LCH105", "hoist-to-setup")
    assert proposed(before.format("self.model(x)"), "ramp =", "LCH105", "hoist-to-setup")


def test_a_method_that_another_file_calls():
    before, after = change("""
        import torch
        class Agent:
            def __init__(self, size):
                self.size = size
      +         self.offset = torch.arange(self.size)
            def learn(self, x):
      -         offset = torch.arange(self.size)
      -         return x + offset
      +         return x + self.offset
    """)
    assert proposed(before, "offset =", "LCH105", "hoist-to-setup")[0] == after
    once = before + "agent = Agent(3)\nagent.learn(torch.ones(3))\n"
    assert not proposed(once, "offset =", "LCH105", "hoist-to-setup")
