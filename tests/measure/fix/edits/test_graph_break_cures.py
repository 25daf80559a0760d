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
