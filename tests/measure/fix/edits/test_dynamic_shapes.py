from measure.fix.proposing import proposed

EDIT = "dynamic-shapes"


def test_a_blind_setting_is_taken_out():
    before = """
        import torch
        from functools import partial

        class Scorer:
            compiled = partial(torch.compile, dynamic=True)

        @torch.compile(dynamic=True, mode="default")
        def step(x):
            return x * 2
    """
    first, second = proposed(before, "dynamic=True", "CMP101", EDIT)
    assert {"partial(torch.compile)\n" in text for text in (first, second)} == {True, False}
    assert {'@torch.compile(mode="default")\n' in text for text in (first, second)} == {True, False}
    assert not proposed(proposed(first, 3, "CMP101", EDIT)[0], 3, "CMP101", EDIT)


def test_fixed_sizes_are_let_go():
    before = "import torch\n\nrefine = torch.compile(net, dynamic=False)\n"
    (after,) = proposed(before, "refine", "CMP031", EDIT)
    assert "torch.compile(net)\n" in after
