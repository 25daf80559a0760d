from measure.fix.proposing import proposed

EDIT = "compile-pointwise"


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
