"""A loader gathers large batches row by row from tensors that lie in memory.

Looks like: ``DataLoader(TensorDataset(x, y), batch_size=4096, shuffle=True)``.
Slow because: each row is indexed by Python and all rows are stacked again: thousands of small calls for a batch that
    one index would give.
Fix: index the tensors with a part of a permutation, on the device where they fit.
Quiet when: batches are small, or workers prepare them.
Source: PyTorch documentation of ``torch.utils.data``, "Disable automatic batching".
"""

from collections.abc import Iterator

from torchtriage.diagnose.lint.base import Fix, Hit, Module, Rule, text_of
from torchtriage.diagnose.lint.rules._loaders import workers
from torchtriage.diagnose.lint.syntax import argument
from torchtriage.diagnose.lint.torch_names import LOADERS

RULE = Rule("DAT112", "rows-gathered-one-by-one", "data", "Large batches are gathered row by row", "low")

FIX = Fix(
    text="Take all rows of a batch with one index.",
    code="""for rows in torch.randperm(len(x), device=x.device).split(4096):
    step(x[rows], y[rows])""",
    link="https://docs.pytorch.org/docs/stable/data.html#disable-automatic-batching",
)

LARGE = 512
"""Rows of a batch from which Python's time for each row is more than a small model's step."""


def find(module: Module) -> Iterator[Hit]:
    """Yield loaders of large batches over tensors in memory."""
    for call in module.called(*LOADERS):
        if not call.arguments or call.arguments[0].kind != "dataset" or call.context.aside:
            continue
        size = argument(call.node, "batch_size", 1)
        number = module.constant(size, call.context)
        if type(number) is int and number >= LARGE and workers(module, call) == 0:
            yield Hit(call.node, f"{number} rows are gathered one by one for each batch: {text_of(call.node)}")
