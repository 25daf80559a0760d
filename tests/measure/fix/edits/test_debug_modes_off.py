from measure.fix.proposing import proposed

EDIT = "debug-modes-off"


def test_the_default_of_a_field_is_changed():
    before = """
        from dataclasses import dataclass
        import torch

        @dataclass
        class Config:
            lr: float = 0.1
            check: bool = True  # numerics

        class Trainer:
            def __init__(self, cfg: Config):
                self.cfg = cfg
                torch.autograd.set_detect_anomaly(cfg.check)
    """
    (after,) = proposed(before, "set_detect", "CFG044", EDIT)
    assert "    check: bool = False  # numerics\n" in after
    assert not proposed(after, "set_detect", "CFG044", EDIT)


def test_a_block_gives_its_body_back():
    before = '''
        import torch

        def train(model, loader, opt):
            for x in loader:
                with torch.autograd.detect_anomaly():
                    loss = model(x).mean()
                    # the step

                    print("""a
            b""")
                    loss.backward()
                opt.step()
    '''
    (after,) = proposed(before, "detect_anomaly", "CFG044", EDIT)
    assert (
        "    for x in loader:\n        loss = model(x).mean()\n        # the step\n\n"
        '        print("""a\n    b""")\n        loss.backward()\n        opt.step()\n'
    ) in after


def test_one_of_several_blocks_is_taken_out():
    before = """
        import torch

        with torch.autograd.set_detect_anomaly(True), torch.autocast("cpu"):
            run()
        with open("x") as f, torch.autograd.detect_anomaly():
            run()
    """
    first, second = proposed(before, 3, "CFG044", EDIT)
    assert {'with torch.autocast("cpu"):' in first, 'with open("x") as f:' in second} == {True}


def test_variables_and_tracers_are_taken_out():
    before = """
        import os, tracemalloc
        os.environ["CUDA_LAUNCH_BLOCKING"] = "1"
        tracemalloc.start(25)
        print(tracemalloc.get_traced_memory())
    """
    (after,) = proposed(before, 2, "CFG044", EDIT)
    assert "LAUNCH" not in after
    (after,) = proposed(before, 3, "MSR101", EDIT)
    assert "start" not in after


def test_nothing_where_the_switch_is_off_or_not_known():
    before = """
        import sys, torch

        torch.autograd.set_detect_anomaly(False)
        torch.autograd.set_detect_anomaly(len(sys.argv) > 1)
        sys.settrace(None)
    """
    assert not proposed(before, 3, "CFG044", EDIT)
    assert not proposed(before, 3, "MSR101", EDIT)
