"""From a call to the functions of the file that it runs, and what flows down to them and back.

A function is read where it is first called, with what it is given there; what it returns goes on in
its caller. So values pass through methods, callbacks and helpers in the order a program runs them.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator

from torchtriage.diagnose.lint import torch_names
from torchtriage.diagnose.lint.abstract_values import CPU, HOST, UNKNOWN, Value
from torchtriage.diagnose.lint.facts import Class, Context, SourceCall, SourceFunction
from torchtriage.diagnose.lint.syntax import is_self, literal, path_called, path_of
from torchtriage.diagnose.lint.walk.definitions import bind_parameters
from torchtriage.diagnose.lint.walk.walker import Env, Walker
from torchtriage.diagnose.lint.work_syntax import parameters

_WRAPS = re.compile(r"torch\.(?!utils|multiprocessing)|functools\.|callable$|warnings\.")
# what these are given runs elsewhere, or when something is wrong
_RUNNERS = torch_names.words("submit map imap imap_unordered starmap apply_async run_in_executor to_thread Thread")
_ALTERNATIVES = 4
# names that objects of other kinds have too
_COMMON = re.compile(
    r"__|(append|extend|insert|pop|remove|clear|copy|count|index|sort|reverse|get|items|keys|values|update|setdefault|add"
    r"|join|split|strip|replace|format|encode|decode|read|write|close|open|flush|seek|send|recv|put|start|stop|run|wait|set"
    r"|to|cpu|cuda|float|half|double|int|long|item|numpy|tolist|view|reshape|mean|sum|max|min|std|var|abs|step|backward|forward"
    r"|eval|train|parameters|state_dict|load_state_dict|detach|clone|zero_grad|register_buffer|log|info|debug|warning|error"
    r"|save|load|name|size|shape|dim|type|result|submit|map|filter|next|render|sample|fit|transform|predict|score)$"
)
_DEPTH = 12
"""Calls that are read inside one another; what is deeper is read later, without its arguments."""


def read_function(walker: Walker, function: SourceFunction, caller: Context | None = None) -> None:
    """Read a function's body, unless it has been read."""
    scopes = walker.unread.pop(function, None)
    if scopes is None:
        return
    saved = walker.scopes, walker.context, walker.user
    local: Env = {}
    walker.scopes = [*scopes, local]
    walker.user = None
    walker.context = Context(
        function=function,
        aside=torch_names.SIDE.search(function.qualname) is not None,
        no_grad=function.no_grad or (caller is not None and caller.no_grad),
    )
    walker.depth += 1
    bind_parameters(walker, function, local)
    walker.block(function.node.body)
    walker.depth -= 1
    walker.scopes, walker.context, walker.user = saved


def callees(walker: Walker, call: SourceCall) -> tuple[SourceFunction, ...]:
    """Return the functions of the file that a call may run."""
    func = call.node.func
    if isinstance(func, ast.Name):
        known = walker.lookup(func.id)
        if known is not None:
            found = runs(walker, known)
            if found or known.kind != "unknown":
                return found
        made = walker.module.classes.get(func.id)
        if made is not None:
            return _construction(made)
        function = walker.by_name.get(func.id)
        return (function,) if function is not None else ()
    if isinstance(func, ast.Attribute):
        return _methods(walker, func, call.receiver)
    return runs(walker, call.receiver)


def _methods(walker: Walker, func: ast.Attribute, receiver: Value) -> tuple[SourceFunction, ...]:
    owner = walker.owner
    if owner is not None and is_self(func.value):
        own = owner.runs(func.attr)
        return own or runs(walker, owner.attribute(func.attr) or UNKNOWN)
    if path_called(func.value) == "super" and owner is not None:
        inherited = [parent.method(func.attr) for parent in owner.parents]
        return tuple(item for item in inherited if item is not None)
    if isinstance(func.value, ast.Name):
        known = walker.lookup(f"{func.value.id}.{func.attr}")
        if known is not None and known.kind != "unknown":
            return runs(walker, known)
        made = walker.module.classes.get(func.value.id)
        if made is not None and walker.lookup(func.value.id) is None:
            return made.runs(func.attr)  # Class.method(...)
    found = [function for known in _classes(walker, receiver) for function in known.runs(func.attr)]
    if not found:
        found = [
            function
            for known in _classes(walker, receiver)
            for function in runs(walker, known.attribute(func.attr) or UNKNOWN)
        ]
    if not found and receiver.kind == "unknown" and walker.is_program and not _COMMON.match(func.attr):
        # what a table or a factory gives: whichever class of the file has such a method
        owners = [known for known in walker.module.classes.values() if func.attr in known.methods]
        if len(owners) <= _ALTERNATIVES and not walker.aliases.get(path_of(func).partition(".")[0]):
            found = [known.methods[func.attr] for known in owners]
    return tuple(dict.fromkeys(found))


def _classes(walker: Walker, value: Value) -> Iterator[Class]:
    """Yield the classes of the file that an object may be of."""
    for item in (value, *value.items) if value.kind in ("object", "module", "callable") else ():
        known = walker.module.classes.get(item.of) if item.kind in ("object", "module") else None
        if known is not None:
            yield known


def _construction(made: Class) -> tuple[SourceFunction, ...]:
    found = [made.method("__init__"), made.method("__post_init__")]
    return tuple(item for item in found if item is not None)


def runs(walker: Walker, value: Value) -> tuple[SourceFunction, ...]:
    """Return what calling a value runs."""
    if value.kind not in ("callable", "object", "module"):
        return ()
    found = list(value.calls)
    for known in _classes(walker, value):
        found += known.runs("forward" if known.is_module else "__call__")
    for item in value.items:
        found += item.calls
    return tuple(dict.fromkeys(found))


def iterated(walker: Walker, value: Value) -> tuple[SourceFunction, ...]:
    """Return what runs for each element of what is iterated."""
    found = list(value.calls)
    for item in value.items if value.kind in ("list", "loader") else ():
        found += item.calls if item.kind in ("list", "loader") else ()
    if value.kind == "object":
        for known in _classes(walker, value):
            for name in ("__iter__", "__next__", "__getitem__"):
                found += known.runs(name)
    return tuple(dict.fromkeys(found))


def pass_on(walker: Walker, call: SourceCall) -> None:
    """Tell the functions that a call runs what they are given, and read those not yet read."""
    for callee in call.callees:
        _give(walker, callee, call)
        runs_here(walker, callee)
        if callee.fires is not None:
            _fire(walker, callee, call)
    _note_asked(walker, call)
    if call.callees:
        return
    # what is handed to code that is not here is called from there: executors, maps, keys, hooks
    for value in call.arguments if not _WRAPS.match(call.name) else ():
        given = value.kind == "callable" or (value.kind in ("object", "module") and call.attr in _RUNNERS)
        for function in runs(walker, value) if given else ():
            runs_here(walker, function)


def _fire(walker: Walker, callee: SourceFunction, call: SourceCall) -> None:
    """Note the methods that a call runs by their name: ``self.fire("on_batch_end", logits)``."""
    assert callee.fires is not None
    parameter, before, after = callee.fires
    event = literal(callee.given_by(call.node).get(parameter))
    if not isinstance(event, str):
        return
    passed = call.arguments[len(callee.places) : len(call.node.args)]
    for known in walker.module.classes.values():
        method = known.methods.get(f"{before}{event}{after}")
        if method is None:
            continue
        names = [arg.arg for arg in method.node.args.args]
        for name, value in zip(reversed(names), reversed(passed), strict=False):
            if value.kind != "unknown":
                method.given.setdefault(name, value)
        runs_here(walker, method)


def runs_here(walker: Walker, function: SourceFunction) -> None:
    """Note that a function runs at this place, and read it if it has not been read."""
    if function is walker.function:
        return
    walker.module.edges.append((walker.context, function))
    if function not in walker.unread or walker.depth >= _DEPTH:
        return
    loads = function.loads or walker.context.loads
    if walker.is_program or loads or function in walker.speaking:
        read_function(walker, function, walker.context)


def _give(walker: Walker, callee: SourceFunction, call: SourceCall) -> None:
    names = [*callee.places[: len(call.node.args)], *(keyword.arg or "" for keyword in call.node.keywords)]
    for name, value in zip(names, call.arguments, strict=False):
        # a second caller's callback runs where the first one's does
        for asked in callee.asked.get(name, ()):
            for function in runs(walker, value):
                walker.module.edges.append((asked.context, function))
                asked.callees = tuple(dict.fromkeys((*asked.callees, function)))
        if value.kind != "unknown":
            callee.given.setdefault(name, value)


def _note_asked(walker: Walker, call: SourceCall) -> None:
    """Remember the call of a parameter."""
    if not isinstance(call.node.func, ast.Name):
        return
    name, function = call.node.func.id, walker.function
    while function is not None:
        if name in parameters(function.node):
            function.asked.setdefault(name, []).append(call)
            return
        function = function.outer


def returned(walker: Walker, functions: Iterable[SourceFunction]) -> Value:
    """Return what functions give to their caller."""
    found: list[Value] = []
    for function in functions:
        if function in walker.unread:
            return UNKNOWN
        if function.is_generator:
            items = (function.yields,) if function.yields.kind != "unknown" or function.yields.items else ()
            found.append(Value("list", CPU, items=items, calls=(function,)))
        else:
            found += [value for _, value in function.returns] or [HOST]
    values = [value for value in found if value.kind != "host"]
    if not values:
        return HOST if found else UNKNOWN
    first = values[0]
    if any(value.kind != first.kind for value in values) or first.kind == "clock":
        return UNKNOWN
    return first.but(grad=any(value.grad for value in values), evaluated=all(value.evaluated for value in values))
