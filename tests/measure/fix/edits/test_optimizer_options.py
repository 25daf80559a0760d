from measure.fix.proposing import proposed

EDIT = "optimizer-options"


def test_the_optimizer_of_a_script_is_fused():
    before = """
        import torch

        opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
        for x in loader:
            model(x).mean().backward()
            opt.step()
    """
    (after,) = proposed(before, "opt.step()", "LCH016", EDIT)
    assert "torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)" in after
    assert not proposed(after, "opt.step()", "LCH016", EDIT)


def test_the_optimizer_of_an_object_that_has_no_fused_kernel_goes_over_lists():
    before = """
        from torch.optim import RMSprop

        class Trainer:
            def __init__(self, model):
                self.opt = RMSprop(
                    model.parameters(),
                    lr=1e-3,
                )

            def step(self, loss):
                loss.backward()
                self.opt.step()
    """
    (after,) = proposed(before, "self.opt.step()", "HST114", EDIT)
    assert "            lr=1e-3,\n            foreach=True,\n        )" in after


def test_an_option_that_forbids_it_is_replaced():
    before = """
        from torch import optim

        optimizer = optim.SGD(model.parameters(), lr=0.1, foreach=False, momentum=0.9)
    """
    (after,) = proposed(before, "optimizer =", "LCH016", EDIT)
    assert "optim.SGD(model.parameters(), lr=0.1, fused=True, momentum=0.9)" in after


def test_nothing_for_a_scheduler_or_unknown_options():
    before = """
        import torch

        opt = torch.optim.Adam(model.parameters(), **options)
        sched = torch.optim.lr_scheduler.StepLR(opt, 10)
        for x in loader:
            model(x).mean().backward()
            opt.step()
            sched.step()
    """
    assert not proposed(before, "opt.step()", "LCH016", EDIT)
    assert not proposed(before, "sched.step()", "LCH016", EDIT)


def test_an_optimizer_chosen_by_its_name() -> None:
    text = """
    import argparse
    import torch.optim as optim

    parser = argparse.ArgumentParser()
    parser.add_argument("--optim", default="Adam")
    args = parser.parse_args()
    optimizer = getattr(optim, args.optim)(model.parameters(), lr=1e-3)
    for batch in loader:
        model(batch).sum().backward()
        optimizer.step()
    """
    (new,) = proposed(text, "optimizer.step()", "LCH016", "optimizer-options")
    assert "getattr(optim, args.optim)(model.parameters(), lr=1e-3, fused=True)" in new


def test_the_only_optimizer_of_another_file() -> None:
    text = """
    import torch

    def configure(model):
        return torch.optim.AdamW(model.parameters())
    """
    (new,) = proposed(text, 0, "LCH016", "optimizer-options")
    assert "AdamW(model.parameters(), fused=True)" in new
