"""A DataLoader is restarted in every step, for its first batch.

Looks like: ``next(iter(loader))`` in a loop of steps, or in what it calls.
Slow because: ``iter`` starts the workers again, draws a new order of all samples, and fills the queues; only one batch
    of all that is used.
Fix: make the iterator once, and start a new one when it ends.
Quiet when: it runs once, for a look at the data, or behind ``if step % n``.
Source: PyTorch documentation of ``torch.utils.data.DataLoader``.
"""

import re
from collections.abc import Iterator

from torchtriage.diagnose.lint.base import Fix, Hit, Module, Rule, SourceCall, text_of
from torchtriage.diagnose.lint.syntax import path_of

RULE = Rule("DAT107", "loader-started-in-step", "data", "A DataLoader is restarted in every step", "medium")

FIX = Fix(
    text="Start the loader once, and again only when it is exhausted.",
    code="""def endless(loader):
    while True:
        yield from loader

batches = endless(loader)                  # before the loop
for step in range(n_steps):
    batch = next(batches)""",
    link="https://docs.pytorch.org/docs/stable/data.html#torch.utils.data.DataLoader",
)

_LOADER = re.compile(r"loader|(^|_)dl(_|$)|(^|_)dl\d?$", re.IGNORECASE)


def find(module: Module) -> Iterator[Hit]:
    """Yield iterators over loaders that are made for one batch in each step."""
    for call in module.called("iter"):
        if not call.node.args or not _is_loader(call) or not module.repeats(call.context):
            continue
        if call.context.hot and _takes_first(module, call):
            yield Hit(call.node, f"every step starts this loader again: {text_of(call.node)}", "iter")


def _is_loader(call: SourceCall) -> bool:
    if call.arguments[0].kind == "loader":
        return True
    return _LOADER.search(path_of(call.node.args[0]).rpartition(".")[2]) is not None


def _takes_first(module: Module, call: SourceCall) -> bool:
    """Return whether the iterator gives one batch: ``next(iter(loader))``, or a name that no loop goes over."""
    if call.user is not None and call.user.attr == "next":
        return True
    if not call.target or "." in call.target or call.stored:
        return False
    function, loop = call.context.function, call.context.statement_loop
    turns = [item for item in module.loops if item.function is function and item.over == call.target]
    asked = [
        item
        for item in module.called("next")
        if [path_of(given) for given in item.node.args[:1]] == [call.target] and item.context.function is function
    ]
    return bool(asked) and not turns and all(item.context.statement_loop is loop for item in asked)
