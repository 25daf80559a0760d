from measure.fix.proposing import proposed

EDIT = "compile-pointwise"


def test_a_function_that_is_a_chain_is_compiled():
    before = """
        import torch

        def grade(x, gain):
            x = x.clamp_min(0) ** 2.2 * gain
            y = x * (2.5 * x + 0.03) / (x * (2.4 * x + 0.6) + 0.1)
            return torch.where(x < 0.1, y, y.clamp(0, 1))

        with torch.inference_mode():
            for frame in frames:
                total += grade(frame, 1.1).mean()
    """
    (after,) = proposed(before, "return torch.where", "LCH015", EDIT)
    assert "@torch.compile\ndef grade(x, gain):" in after
    assert not proposed(after, "return torch.where", "LCH015", EDIT)


def test_a_static_method_stays_one():
    before = """
        import torch

        class World:
            @staticmethod
            def move(s, force):
                x, v = s.unbind(1)
                a = (10.0 * force + 0.05 * v * v * torch.sin(x)) / 1.1
                return torch.stack([x + 0.02 * v, v + 0.02 * a], 1)
    """
    (after,) = proposed(before, "a = (10.0", "HST114", EDIT)
    assert "    @staticmethod\n    @torch.compile\n    def move(s, force):" in after


def test_a_model_that_waits_for_python_is_compiled_in_place():
    before = """
        import torch
        from torch import nn

        class Agent:
            def __init__(self, device):
                self.net = nn.Sequential(nn.Linear(4, 8), nn.Tanh()).to(device)

            def act(self, obs):
                return self.net(obs)
    """
    (after,) = proposed(before, "return self.net", "HST020", EDIT)
    assert ".to(device)\n        self.net.compile()\n" in after
    assert not proposed(after, "return self.net", "HST020", EDIT)


def test_nothing_where_numbers_are_read_or_drawn():
    before = """
        import torch

        def noisy(x):
            return (x * 2 + torch.randn_like(x) * 3 - 1).clamp(0, 1) * 5 + x

        def shown(x):
            y = x * 2 + 3 * x - x ** 2 + 4
            print(y.mean())
            return y

        def stepped(self, x):
            self.t += 1
            return x * 2 + 3 * x - x ** 2 + self.t
    """
    for line in ("torch.randn_like", "y = x", "return x * 2 + 3"):
        assert not proposed(before, line, "HST114", EDIT)
