"""Which loader a place is about: the calls that construct it, in the same file."""

from __future__ import annotations

import ast
import re

from torchtriage.diagnose.lint.facts import Module, SourceCall, SourceFunction
from torchtriage.diagnose.lint.samples import samples_of
from torchtriage.diagnose.lint.syntax import argument, keyword, literal, path_of
from torchtriage.diagnose.lint.torch_names import DATASETS, LOADERS
from torchtriage.measure.fix.edits._settings import origin_of
from torchtriage.measure.fix.proposal import Site
from torchtriage.measure.fix.statements import source

ROWS = frozenset({"clone", "tensor", "as_tensor", "from_numpy", "long", "float", "dict"})
"""What a ``__getitem__`` may call that gives many rows for many."""

_DRAWS = re.compile(r"\brandom\b|np\.random|\brand(n|int|perm)?\(|Random[A-Z]|[Aa]ugment|[Jj]itter|default_rng")
REORDERED = "the order of shuffled samples and the random numbers in workers differ from the second epoch on"


def shuffles(call: SourceCall) -> bool:
    """Return whether a loader may draw the order of its samples."""
    given = [argument(call.node, name, place) for place, name in enumerate(("shuffle", "sampler", "batch_sampler"), 2)]
    return any(item is not None and literal(item) not in (False, None) for item in given)


def draws(module: Module, call: SourceCall) -> bool:
    """Return whether making a sample of a loader may draw; where the file shows no data set, whether it does at all."""
    made = data_of(module, call)
    known = module.classes.get(path_of(made.func)) if made is not None else None
    if known is None:
        elsewhere = made is None or not module.name_of(made.func).startswith("torch.")
        return elsewhere and _DRAWS.search(module.text) is not None
    methods = [item.node for name, item in known.methods.items() if name != "__init__"]
    bodies = {*methods, *(item.node for method in methods for item in module.reached(method))}
    return any(_DRAWS.search(source(module, body)) for body in bodies)


def loaders_at(site: Site) -> list[SourceCall]:
    """Return the constructions of the loader that a line makes, goes over, or makes samples for."""
    module = site.module
    calls = [call for call in module.called(*LOADERS) if not call.context.aside]
    made = [call for call in calls if site.holds(call.node)]
    if made:
        return made
    owner = sample_class(site)
    if owner is not None:
        return [call for call in calls if (data := data_of(module, call)) and path_of(data.func) == owner.name]
    turns = {loop.node: loop for loop in module.loops}
    walked = [turns[loop] for loop in site.loops if loop in turns and turns[loop].over_loader]
    for loop in walked:
        found = [call for call in calls if call.node is loop.iterates.made_by]
        if not found:
            found = [call for call in calls if call.target and call.target.rpartition(".")[2] == loop.over]
        if found or len(calls) == 1:
            return found or calls
    return []


def data_of(module: Module, call: SourceCall) -> ast.Call | None:
    """Return the construction of the data set that a loader, or a part of which it, goes over."""
    given = call.node.args[0] if call.node.args else keyword(call.node, "dataset")
    while given is not None:
        made = origin_of(module, given)
        if not isinstance(made, ast.Call):
            return None
        if path_of(made.func).rpartition(".")[2] not in ("Subset", "random_split"):
            return made
        given = made.args[0] if made.args else None
    return None


def hands_out_rows(module: Module, call: SourceCall) -> bool:
    """Return whether the data set gives several rows, and nothing but rows, for a list of their numbers."""
    made = data_of(module, call)
    if made is None:
        return False
    if module.name_of(made.func) in DATASETS:
        return True
    known = module.classes.get(path_of(made.func))
    getter = known.methods.get("__getitem__") if known is not None else None
    if getter is None or not isinstance(getter.node.body[-1], ast.Return) or len(getter.node.body) > 3:
        return False
    called = [
        module.name_of(node.func).rpartition(".")[2] for node in ast.walk(getter.node) if isinstance(node, ast.Call)
    ]
    plain = not any(isinstance(node, ast.If | ast.IfExp | ast.BinOp | ast.For) for node in ast.walk(getter.node))
    return plain and set(called) <= ROWS


def sample_class(site: Site) -> ast.ClassDef | None:
    """Return the class of the data set whose samples the line makes, itself or in what a sample calls."""
    here = sample_function(site)
    makers = [here, *samples_of(site.module).roots] if here is not None else []
    return next((function.owner.node for function in makers if function.owner is not None), None)


def sample_function(site: Site) -> SourceFunction | None:
    """Return the function around the line, where it runs for each sample."""
    function = site.known_function
    return function if function in samples_of(site.module).functions else None
