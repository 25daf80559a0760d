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


def test_a_counter_of_a_model_becomes_a_buffer_and_its_input_has_one_dtype():
    before = """
        import torch
        from torch import nn

        class Filter(nn.Module):
            def __init__(self):
                super().__init__()
                self.seen = 0

            def forward(self, raw):
                x = raw.float()
                self.seen += 1
                return x / (1 - 0.9 ** self.seen)

        net = Filter()
        fast = torch.compile(net)
        for frame in frames:
            fast(frame)
    """
    (after,) = proposed(before, "self.seen +=", "CMP031", EDIT)
    assert '        self.register_buffer("seen", torch.tensor(0), persistent=False)\n' in after
    assert "fast(frame.float())" in after
