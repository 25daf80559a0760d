from measure.fix.proposing import proposed

EDIT = "optimizer-options"


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
