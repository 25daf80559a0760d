from measure.fix.proposing import proposed

EDIT = "inference-mode"


def test_a_function_of_a_program_that_trains_nothing_gets_inference_mode():
    before = """
        import torch

        def embed(model, x):
            return model(x).mean(1)

        def main(model, batches):
            return torch.cat([embed(model, x) for x in batches])
    """
    first, *_ = proposed(before, "return model(x)", "CFG043", EDIT)
    assert "@torch.inference_mode()\ndef embed(model, x):" in first
    assert not proposed(first, "return model(x)", "CFG043", EDIT)


def test_a_method_of_a_training_program_gets_no_grad():
    before = """
        import torch
        from torch import nn

        class Trainer:
            def __init__(self):
                self.model = nn.Linear(4, 4)
                self.opt = torch.optim.SGD(self.model.parameters(), lr=0.1)

            def loss(self, x):
                return self.model(x).square().mean()

            def fit(self, loader):
                for x in loader:
                    self.opt.zero_grad()
                    self.loss(x).backward()
                    self.opt.step()

            def validate(self, loader):
                total = 0.0
                for x in loader:
                    total += self.loss(x)
                return total
    """
    first, *_ = proposed(before, "total += self.loss", "MEM029", EDIT)
    assert "    @torch.no_grad()\n    def validate(self, loader):" in first
    assert not proposed(before, "self.loss(x).backward()", "MEM029", EDIT)


def test_a_probe_of_a_training_loop_is_decorated():
    before = """
        import torch

        def spread(model, x):
            return torch.stack([model(x) for _ in range(8)]).std()

        model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout())
        opt = torch.optim.SGD(model.parameters(), lr=0.1)
        curve = []
        for x in torch.randn(100, 8, 4):
            opt.zero_grad()
            model(x).mean().backward()
            opt.step()
            curve.append(spread(model, x))
    """
    first, *_ = proposed(before, "curve.append", "MEM029", EDIT)
    assert "@torch.no_grad()\ndef spread(model, x):" in first


def test_nothing_in_a_block_without_autograd_or_in_a_step_of_training():
    before = """
        import torch

        def evaluate(model, loader):
            with torch.no_grad():
                for x in loader:
                    print(model(x))

        def train(model, loader):
            for x in loader:
                loss = model(x).sum()
                loss.backward()
    """
    assert not proposed(before, "print(model(x))", "CFG043", EDIT)
    assert not proposed(before, "loss.backward()", "CFG043", EDIT)
