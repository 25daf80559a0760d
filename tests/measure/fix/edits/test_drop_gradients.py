from measure.fix.proposing import proposals, proposed

EDIT = "drop-gradients"


def test_an_optimizer_of_a_trainer():
    before = """
        class Trainer:
            def run(self, loader):
                for x in loader:
                    self.opt.zero_grad(set_to_none=False)
                    self.model(x).mean().backward()
                    self.opt.step()
    """
    (after,) = proposed(before, "zero_grad", "OPT040", EDIT)
    assert "self.opt.zero_grad(set_to_none=True)" in after
    assert not proposed(after, "zero_grad", "OPT040", EDIT)
    assert proposed(before, "backward", "OPT040", EDIT) == [after]


def test_gradients_that_are_detached_first():
    before = "for p in params:\n    p.grad.detach_().zero_()\n"
    assert proposed(before, "zero_()", "OPT040", EDIT) == ["for p in params:\n    p.grad = None\n"]


def test_nothing_for_the_default_or_other_tensors():
    before = """
        opt.zero_grad()
        total.zero_()
    """
    assert not proposed(before, "zero_grad", "OPT040", EDIT)
    assert not proposed(before, "total.zero_", "OPT040", EDIT)


def test_gradients_that_are_none_are_said():
    before = """
        import torch

        for batch in loader:
            for p in model.parameters():
                p.grad.zero_()
            model(batch).sum().backward()
    """
    filled = "opt.zero_grad(set_to_none=False)"
    for text, line in ((before, "zero_()"), (filled, "zero_grad")):
        (proposal,) = proposals(text, line, "OPT040", EDIT)
        assert "None" in proposal.changes
