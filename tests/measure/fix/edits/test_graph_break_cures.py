from measure.fix.proposing import proposals, proposed

EDIT = "graph-break-cures"


def test_all_breaks_of_a_function_are_cured_together():
    before = """
        import torch

        @torch.compile
        def step(x, y):
            z = x * y
            print("mean", z.mean())
            if z.sum() > 0:
                z = z / z.sum()
            n = z.max().item()
            return z + n
    """
    (after,) = proposed(before, "print(", "CMP030", EDIT)
    assert after.endswith("""
    z = x * y
    z = torch.where(z.sum() > 0, z / z.sum(), z)
    n = z.max()
    return z + n
""")
    assert not proposed(after, "z = x", "CMP030", EDIT)


def test_a_print_behind_a_flag_of_a_model_is_switched_off():
    before = """
        import torch
        from torch import nn

        class Counter(nn.Module):
            def __init__(self, debug=True):
                super().__init__()
                self.debug = debug

            def forward(self, x):
                if self.debug:
                    print("max", x.max())
                return x * 2

        model = torch.compile(Counter())
        for x in torch.rand(10, 4):
            model(x)
    """
    (after,) = proposed(before, "print(", "CMP030", EDIT)
    assert "def __init__(self, debug=False):" in after


def test_both_branches_are_chosen_from():
    before = """
        import torch

        class Filter:
            @torch.compile
            def run(self, x):
                if x.mean() > 0:
                    y = x + 1
                else:
                    y = x - 1
                return y
    """
    (after,) = proposed(before, "if x.mean", "CMP030", EDIT)
    assert "        y = torch.where(x.mean() > 0, x + 1, x - 1)\n        return y" in after


def test_a_division_in_a_branch_is_said_to_be_a_risk():
    before = """
        import torch

        @torch.compile
        def step(x, n):
            if n.sum() > 0:
                y = x / n
            else:
                y = x
            return y
    """
    assert proposals(before, "if n.sum", "CMP030", EDIT)[0].changes
