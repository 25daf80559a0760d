"""The number of threads is left to the machine."""

from tests.measure.fix.proposing import change, proposed


def test_too_many_threads_are_not_asked_for():
    before, after = change("""
        import os

      - os.environ["OMP_NUM_THREADS"] = "16"
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

        import torch

      - torch.set_num_threads(16)
        model = torch.nn.Linear(4, 4)
    """)
    assert proposed(before, "torch.set_num_threads", "CFG101", "threads")[0] == after


def test_threads_of_a_function():
    before, after = change("""
        import torch


        def main():
      -     torch.set_num_threads(64)
      -     torch.set_num_interop_threads(8)
            train()
    """)
    assert proposed(before, "torch.set_num_threads", "CFG101", "threads")[0] == after


def test_a_variable_of_the_environment():
    before, after = change("""
        import os

      - os.environ.setdefault("MKL_NUM_THREADS", "32")
        model = build()
    """)
    assert proposed(before, "os.environ", "CFG101", "threads")[0] == after


def test_other_lines_stay():
    before = """
        import torch

        torch.set_num_threads(64)
        train()
    """
    assert not proposed(before, "train()", "CFG101", "threads")
