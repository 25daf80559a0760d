"""The same data is read, encoded or prepared again in every epoch.

Looks like: ``load_data(path)``, ``vocab.encode(text)``, ``Dataset(path)``, ``build_graph(edges)`` in the loop over
    epochs, of what no epoch changes.
Slow because: the device waits at the start of each epoch for what the first one already made.
Fix: prepare it once, before the loop.
Quiet when: it draws at random, shuffles, augments, or depends on the epoch.
Source: PyTorch performance tuning guide.
"""

import ast
import re
from collections.abc import Iterator

from torchtriage.diagnose.lint.base import Fix, Hit, Module, Rule, SourceCall, SourceLoop, names_in, text_of
from torchtriage.diagnose.lint.syntax import attributes_in, path_of
from torchtriage.diagnose.lint.work_syntax import bound_names

RULE = Rule(
    "DAT113",
    "prepared-in-each-epoch",
    "data",
    "The same data is prepared again every epoch",
    "medium",
    over=("LCH105",),
)

FIX = Fix(
    text="Prepare it once, before the loop.",
    code="""ids = vocab.encode(text)                   # before the loop
for epoch in range(n_epochs):
    train(ids)""",
    link="https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html",
)

_PREPARES = re.compile(
    r"^_?(load|read|parse|encode|tokeni[sz]e|preprocess|featuri[sz]e|vectori[sz]e|prepare|extract|embed)(_\w+)?$|^read_\w+$"
    r"|^build_(graph|vocab|index|dataset|features|tree)\w*$|^\w+Dataset$|^load_dataset$"
)
_NOT_DATA = re.compile(
    r"model|net|weight|checkpoint|ckpt|state|optim|param|loader|best|resume|sampler|loss|cfg|config|arg"
)
_RANDOM = re.compile(r"rand|shuffle|sample|augment|seed|negative|noise|mask|choice|crop|permut|mixup|epoch")


def find(module: Module) -> Iterator[Hit]:
    """Yield the preparation of unchanging data in loops over epochs."""
    for call in module.calls:
        loop = call.context.loop
        if loop is None or not loop.wraps or not isinstance(loop.node, ast.For) or loop.short or loop.n_constant == 1:
            continue
        if call.context.seldom or call.stored or _is_setting(loop):
            continue
        if not _PREPARES.search(call.attr) or call.name.startswith("torch."):
            continue
        if call.user is not None and _PREPARES.search(call.user.attr):
            continue
        if _NOT_DATA.search(text_of(call.node, 200).lower()):
            continue
        if call.node.args and _stays(module, call, loop) and not _draws(call):
            yield Hit(call.node, f"every epoch prepares this again: {text_of(call.node)}", call.attr)


def _is_setting(loop: SourceLoop) -> bool:
    """Return whether a loop goes over folds, files or settings, each with data of its own."""
    target = " ".join(sorted(loop.targets))
    node = loop.node
    assert isinstance(node, ast.For)
    counted = isinstance(node.iter, ast.Call) and path_of(node.iter.func).rpartition(".")[2] in _COUNTS
    return not (counted or "epoch" in target)


_COUNTS = ("range", "trange", "count", "tqdm")


def _stays(module: Module, call: SourceCall, loop: SourceLoop) -> bool:
    """Return whether all that a call takes comes from outside the loop."""
    changing = bound_names(loop.node) | set(loop.assigned) | loop.targets
    roots = names_in(call.node) - set(module.aliases)
    return bool(roots) and not roots & changing and "epoch" not in attributes_in(call.node)


def _draws(call: SourceCall) -> bool:
    """Return whether anything is drawn at random there, as far as the file shows."""
    texts = [ast.unparse(call.node), *(ast.unparse(callee.node) for callee in call.callees)]
    return any(_RANDOM.search(text.lower()) for text in texts)
