"""Remember what a function gives for the same arguments: a decorator on it, or a dictionary beside the loop."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence

from torchtriage.diagnose.lint.base import decorate
from torchtriage.diagnose.lint.facts import SourceCall, SourceFunction
from torchtriage.diagnose.lint.syntax import arguments, names_in, path_of
from torchtriage.diagnose.lint.torch_names import words
from torchtriage.diagnose.lint.work_words import CACHES
from torchtriage.measure.fix.edits._flow import Flow, flow_of, loads, meets, mutated
from torchtriage.measure.fix.edits._lasting import kept_by_key
from torchtriage.measure.fix.proposal import Proposal, Site
from torchtriage.measure.fix.statements import alias_of, complete, module_in, source

CODES = words("""
    HST020 HST055 HST101 HST103 HST105 HST106 HST107 HST110 HST111 HST114 HST118 HST134 LCH014 LCH015 LCH017 LCH105
    LCH109 SYN005 CPY102 KRN101 KRN102 DAT018 DAT019 DAT105 DAT110 DAT113 DAT114
""")
FILES = re.compile(r"\bopen\(|\.(load|loadtxt|genfromtxt|fromfile|memmap|read\w*|stat|exists|listdir|glob|getmtime)\(")
LEARNED = re.compile(r"\bParameter\(|requires_grad")
UNHASHABLE = words("tensor numpy list module optimizer loader params dataset")
HASHABLE = words("shape size device dtype")


def propose(site: Site) -> Iterator[Proposal]:
    """Yield a dictionary for what depends on one of several targets of the loop, then a cache for the function."""
    flow = flow_of(site.module)
    if (proposal := _by_target(site, flow)) is not None:
        yield proposal
    function = site.known_function
    parts = ast.walk(site.statement) if site.statement is not None else ()
    called = [known for part in parts if isinstance(part, ast.Call) and (known := flow.call(part)) is not None]
    for callee in [function, *(callee for call in called for callee in call.callees)]:
        if callee is not None and (proposal := _cached(site, flow, callee)) is not None:
            yield proposal
            return


def _reads_outside(flow: Flow, calls: Sequence[SourceCall]) -> bool:
    """Return whether what calls run reads files, which may be written again, or parameters, which are trained."""
    module = flow.module
    learned = {
        target.id
        for item in ast.walk(module.tree)
        if isinstance(item, ast.Assign) and LEARNED.search(source(module, item.value))
        for target in item.targets
        if isinstance(target, ast.Name)
    }
    nodes = (*(call.node for call in calls), *(function.node for function in flow.facts.reached(calls)))
    return any(
        names_in(node) & (learned | flow.facts.learned)
        or flow.learns(loads(node))
        or FILES.search(source(module, node))
        for node in nodes
    )


def _cached(site: Site, flow: Flow, function: SourceFunction) -> Proposal | None:
    module, node = site.module, function.node
    calls = [call for call in module.calls if function in call.callees]
    if function.owner is not None or function.outer is not None or not calls or not flow.pure(function):
        return None
    if any(CACHES.search(name) for name in function.decorators) or node.args.vararg or node.args.kwarg:
        return None
    if not any(_comes_again(call) for call in calls) or not all(_is_hashable(site, call) for call in calls):
        return None
    if any(_is_changed(site, call) for call in calls) or _reads_outside(flow, calls):
        return None
    functools, imports = module_in(module, "functools")
    direct = alias_of(module, "functools.cache")
    cached = decorate(module.text, node, direct or f"{functools}.cache")
    edits = complete([cached, *([] if direct else imports)])
    return Proposal(edits, f"cache the result of {function.name}() for the same arguments") if edits else None


def _comes_again(call: SourceCall) -> bool:
    """Return whether a call may be made more than once: in a loop, or in a function that does not set up."""
    function = call.context.function
    return call.context.loop is not None or (function is not None and not function.sets_up and function.name != "main")


def _is_hashable(site: Site, call: SourceCall) -> bool:
    """Return whether a call's arguments can be keys that come again: numbers, names, shapes; never tensors or lists."""
    for node, value in zip(arguments(call.node), call.arguments, strict=False):
        if value.kind in UNHASHABLE and not (isinstance(node, ast.Attribute) and node.attr in HASHABLE):
            return False
        if isinstance(node, ast.List | ast.Dict | ast.Set | ast.ListComp | ast.Starred | ast.Lambda | ast.GeneratorExp):
            return False
        made = site.module.made_of(node)
        if isinstance(made, ast.Call) and not site.module.value(made).scalar and _is_array(site, made):
            return False
        if isinstance(made, ast.List | ast.Dict | ast.Set | ast.ListComp):
            return False
    return bool(call.arguments) or not call.node.args


def _is_array(site: Site, call: ast.Call) -> bool:
    name = site.module.name_of(call.func)
    return name.startswith(("torch.", "numpy.")) and not name.endswith((".device", ".float32"))


def _is_changed(site: Site, call: SourceCall) -> bool:
    """Return whether a call's result is written to."""
    around = site.module.scope(call.node)
    return bool(call.target) and call.target.partition(".")[0] in mutated([around])


def _by_target(site: Site, flow: Flow) -> Proposal | None:
    """Keep in a dictionary what a loop over products computes of some of its targets."""
    module, statement = site.module, site.statement
    if not isinstance(statement, ast.Assign) or not isinstance(statement.value, ast.Call) or not site.loops:
        return None
    loops, call = site.for_loops, statement.value
    known = flow.call(call)
    if not loops or known is None or not known.callees or not all(flow.pure(callee) for callee in known.callees):
        return None
    if _reads_outside(flow, [known]):
        return None
    for outer in reversed(loops):
        targets = set().union(*(names_in(loop.target) for loop in loops if loop.lineno >= outer.lineno))
        keys = [name for name in sorted(targets) if name in names_in(call)]
        varying = flow.changes([outer]) - set(keys)
        if not keys or len(keys) == len(targets) or any(meets(path, varying) for path in flow.reads(call)):
            continue
        if mutated([outer]) & set().union(*(names_in(target) for target in statement.targets)):
            continue
        key = ", ".join(keys)
        name = f"{path_of(call.func).rpartition('.')[2]}_of".lstrip("_")
        name = name.removeprefix("get_").removeprefix("prepare_").removeprefix("make_").removeprefix("build_")
        named = [node for node in ast.walk(call) if isinstance(node, ast.Name) and node.id in keys]
        if name in names_in(module.tree) or any(module.value(node).kind in UNHASHABLE for node in named):
            continue
        if edits := kept_by_key(module, call, statement, outer, name, key):
            return Proposal(edits, f"compute {source(module, call.func)}() once for each {key}")
    return None
