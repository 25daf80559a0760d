"""Who holds what: containers, tensors and graphs reachable by name, and the line that adds.

A leak in Python is always something with a name that grows: a list, a dictionary, a module's hooks,
a variable whose autograd graph gets longer. So the names are walked, not the heap: from the frames
that run and the globals of the user's own modules, some thousand steps along attributes and items,
within a time limit. What has grown at each look is a suspect; the line is then found by looking at
the suspect after each line of a few steps (``line_watch.py``).

Nothing here holds a reference to the user's objects after it returns.
"""

from __future__ import annotations

import gc
import os
import re
import sys
import sysconfig
import types
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from heapq import heappop, heappush
from pathlib import Path
from time import thread_time
from typing import Any

from torchtriage.core.record.stacks import without_collection

WALK_S = 0.02
"""That one walk along the names may take."""
MAX_NODES = 20_000
MAX_GRAPH = 1000
"""Nodes that are looked at of one autograd graph."""

DEEPEST = 9
MANY = 64
"""Of longer containers only the length counts."""
LONG_TEXT = 4096
"""Characters or bytes, from which a text can be what grows."""
MAX_YOUNG = 20_000
"""Objects that are looked at for generators."""

_SKIP, _OTHER, _CONTAINER, _TENSOR, _CACHE, _BUFFER, _TEXT = range(7)
_OF_A_MODULE = ("._modules", "._parameters", "._buffers")
"""Dicts that a module's own names are in: no level of their own, and not part of a name as one writes it."""
_IN_A_MODULE = re.compile(r"\._(?:modules|parameters|buffers)\['(?:(\d+)|(\w+))'\]")
_FUNCTIONS = (types.FunctionType, types.MethodType, types.GeneratorType, tuple)
_BUILT_IN = (dict, OrderedDict, list, set)
_ITERATORS = (zip, map, filter, enumerate)
_kinds: dict[type, int] = {}
_generators: weakref.WeakSet[types.GeneratorType[Any, Any, Any]] = weakref.WeakSet()
_modules: tuple[int, list[tuple[str, dict[str, Any]]]] = (0, [])
_PLAIN = (int, float, complex, bool, type(None), types.BuiltinFunctionType, type)
Measure = Callable[[types.FrameType], int]
"""The size of a thing, seen from a frame."""
_OURS = str(Path(__file__).resolve().parents[2]) + os.sep
_NOT_USERS = (
    _OURS,
    *{
        shape(path) + os.sep
        for name in ("stdlib", "platstdlib", "purelib", "platlib")
        if (path := sysconfig.get_paths().get(name))
        for shape in (str, os.path.realpath)
    },
)
_users: dict[str, bool] = {}


@dataclass(frozen=True)
class CodeLine:
    """A line of the user's code."""

    file: str
    line: int
    function: str


Key = tuple[int, str, str]
"""The id of what names a thing, the name, and the unit of the size."""


@dataclass(frozen=True)
class SizedObject:
    """One thing with a size that can grow, and the names that lead to it.

    ``key`` : the same at each look. ``size`` : items of a container, bytes of a tensor, nodes of a
    graph, per ``unit``. ``names`` : from the root, outermost first.
    """

    key: Key
    size: int
    names: tuple[str, ...]

    @property
    def unit(self) -> str:
        """Return what the size counts."""
        return self.key[2]

    @property
    def name(self) -> str:
        """Return the names as one would write them: ``trainer.history['loss']``."""
        written = "".join(self.names[1:])
        return _IN_A_MODULE.sub(lambda key: f"[{key[1]}]" if key[1] else f".{key[2]}", written).lstrip(".")

    @property
    def root(self) -> str:
        """Return what the first name belongs to: ``train() of train.py`` or ``module train``."""
        return self.names[0]


def is_users(file: str) -> bool:
    """Return whether a file is the user's own: no library's, not ours, not made up."""
    known = _users.get(file)
    if known is None:
        known = _users[file] = _is_users(file)
        if len(_users) > 10_000:
            _users.clear()
    return known


def _is_users(file: str) -> bool:
    if file.startswith("<"):  # made up, but for what is typed
        return file.startswith(("<stdin>", "<ipython-input"))
    # plain strings: thousands of modules are asked for at the first look
    if not os.path.isabs(file):  # noqa: PTH117
        file = str(Path(file).resolve())
        if not Path(file).exists():
            return False
    return not file.startswith(_NOT_USERS) and f"{os.sep}site-packages{os.sep}" not in file


def place_of(frame: types.FrameType | None) -> CodeLine | None:
    """Return the innermost line of the user's code at or above a frame."""
    while frame is not None:
        if is_users(frame.f_code.co_filename):
            return CodeLine(frame.f_code.co_filename, frame.f_lineno, function_name(frame.f_code))
        frame = frame.f_back
    return None


def walk(frame: types.FrameType | None, limit_s: float) -> dict[Key, SizedObject]:
    """Return what is reachable by name and has a size, by key; partial after ``limit_s`` of this thread's own time.

    ``frame`` : the innermost one that runs; those above it are roots as well.
    """
    return {held.key: held for held, _, _ in _walk(frame, limit_s)}


def find(frame: types.FrameType | None, key: Key, limit_s: float) -> tuple[Any, Measure] | None:
    """Return the object that a key stands for, and what measures it, None where it is gone.

    The measure looks the name up each time, in the frame it is given where the name is a local one.
    """
    for held, thing, parent in _walk(frame, limit_s):
        if held.key == key:
            return thing, _measure(held, thing, parent)
    return None


def _measure(held: SizedObject, thing: Any, parent: Any) -> Measure:
    owner, label, unit = held.key
    last = held.size
    container = thing if unit == "items" else None

    def measure(running: types.FrameType) -> int:
        nonlocal last, container
        if parent is not None:
            now = _lookup(parent, label)
        elif id(running.f_code) == owner:
            now = running.f_locals.get(label[1:])
            container = now if unit == "items" else None
        else:
            now = container  # from another frame the variable cannot be seen, what it held can
        if now is not None:
            last = _size(now, unit)
        return last

    return measure


def _lookup(parent: Any, label: str) -> Any:
    if label == "hooks":
        return parent._backward_hooks
    if label.startswith(" closure "):
        names = parent.__code__.co_freevars
        return parent.__closure__[names.index(label[9:])].cell_contents
    if isinstance(parent, dict) and label.startswith("."):
        return parent.get(label[1:])
    if label.startswith("."):
        return getattr(parent, label[1:], None)
    for name, child in _children(parent):
        if name == label:
            return child
    return None


def _size(thing: Any, unit: str) -> int:
    if unit == "nodes":
        return graph_depth(thing)
    if unit == "items":
        return thing.cache_info().currsize if hasattr(thing, "cache_info") else len(thing)
    if isinstance(thing, (bytearray, str, bytes)):
        return len(thing)
    return _tensor_bytes(thing) if hasattr(thing, "numel") else int(thing.nbytes)


def graph_depth(tensor: Any) -> int:
    """Return how deep a tensor's autograd graph goes, seen from ``MAX_GRAPH`` of its nodes.

    The oldest known node is followed first. A graph that is kept from step to step gets deeper with
    each, whatever hangs on it; one that is made anew does not, though it may reach back to nodes
    that were made once.
    """
    root = tensor.grad_fn
    seen, deepest, n = {root}, 1, 0
    todo = [(0, 0, 1, root)]
    while todo and n < MAX_GRAPH:
        _, _, depth, node = heappop(todo)
        deepest = max(deepest, depth)
        for parent, _ in node.next_functions:
            # leaves have nothing before them
            if parent is not None and parent not in seen and parent.next_functions:
                seen.add(parent)
                n += 1
                heappush(todo, (_born(parent), n, depth + 1, parent))
    return deepest


def _born(node: Any) -> int:
    try:
        return int(node._sequence_nr())
    except AttributeError:  # a function written in Python, in older versions
        return 0


_Sized = tuple[SizedObject, Any, Any]
"""A size, the object, and the object that names it (None: a frame)."""
_Node = tuple[Any, Any, int, str, tuple[str, ...], int]
"""A thing, what names it (None: a frame), that one's id, the name, all names, how deep."""


def _walk(frame: types.FrameType | None, limit_s: float) -> Iterator[_Sized]:
    until = thread_time() + limit_s
    seen: set[int] = {id(_users)}
    n = 0
    cleared: list[dict[str, Any]] = []
    todo: deque[_Node] = deque()
    modules: set[int] = set()
    # what the user's own names lead to comes first, those of the loop before those of a large
    # program's other modules, and is the same at each look
    stages = (
        _names_of_frames(frame, cleared, modules, theirs=True),
        _names_of_generators(cleared),
        _names_of_modules(modules),
        _names_of_frames(frame, cleared, modules, theirs=False),
    )
    try:
        for roots in stages:
            for root, names, owner, parent in roots:
                for label, thing in list(root.items()):
                    if not label.startswith("__") and _worth_a_look(thing):
                        todo.append((thing, parent, owner, f".{label}", names, 0))
            while todo and n < MAX_NODES:
                n += 1
                if not n & 127 and thread_time() > until:
                    return
                yield from _look_at(todo.popleft(), seen, todo)
    finally:
        todo.clear()
        for snapshot in cleared:
            snapshot.clear()


def _look_at(node: _Node, seen: set[int], todo: deque[_Node]) -> list[_Sized]:
    """Return the sizes of one thing, and put what it leads to at the end of ``todo``."""
    thing, parent, owner, label, names, depth = node
    try:
        kind = type(thing)
        what = _kinds.get(kind)
        if what is None:
            what = _learn(kind)
        if what == _SKIP:
            return []
        names = (*names, label)
        if what == _TENSOR:
            return _tensor(thing, parent, (owner, label), names)
        if id(thing) in seen:
            return []
        seen.add(id(thing))
        if depth < DEEPEST and what not in (_BUFFER, _TEXT):
            for name, child in _children(thing):
                if _worth_a_look(child):
                    todo.append((child, thing, id(thing), name, names, depth + (name not in _OF_A_MODULE)))
        if what == _OTHER:
            return []
        unit = "bytes" if what in (_BUFFER, _TEXT) else "items"
        return [(SizedObject((owner, label, unit), _size(thing, unit), names), thing, parent)]
    except Exception:  # somebody's __len__, __eq__ or property; the others are looked at
        return []


def _worth_a_look(thing: Any) -> bool:
    kind = type(thing)
    what = _kinds.get(kind)
    if what == _SKIP:
        return False
    if what == _TEXT:
        return len(thing) >= LONG_TEXT
    # a module has a dozen dicts of hooks, nearly all empty for ever
    return what != _CONTAINER or kind not in _BUILT_IN or bool(thing)


def _tensor(thing: Any, parent: Any, key: tuple[int, str], names: tuple[str, ...]) -> list[_Sized]:
    sizes = []
    # a parameter has its size for ever
    if not (isinstance(parent, dict) and names[-2] == "._parameters"):
        sizes.append((SizedObject((*key, "bytes"), _tensor_bytes(thing), names), thing, parent))
    if thing.grad_fn is not None:
        sizes.append((SizedObject((*key, "nodes"), graph_depth(thing), names), thing, parent))
    hooks = thing._backward_hooks
    if hooks:
        sizes.append((SizedObject((id(thing), "hooks", "items"), len(hooks), names), hooks, thing))
    return sizes


def _learn(kind: type) -> int:
    tensor = getattr(sys.modules.get("torch"), "Tensor", None)
    what = _OTHER
    ours = kind.__module__.startswith("torchtriage.")
    if ours or kind in _PLAIN or issubclass(kind, (type, types.ModuleType, types.CodeType)):
        what = _SKIP
    elif kind in (str, bytes):
        what = _TEXT
    elif tensor is not None and issubclass(kind, tensor):
        what = _TENSOR
    elif issubclass(kind, (list, dict, set, deque)):
        what = _CONTAINER
    elif kind.__name__ == "_lru_cache_wrapper":
        what = _CACHE
    elif kind is bytearray or (kind.__module__ == "numpy" and hasattr(kind, "nbytes")):
        what = _BUFFER
    elif not (kind.__getattribute__ is object.__getattribute__ or kind in _FUNCTIONS or _is_iterator(kind)):
        what = _SKIP  # a proxy, which may load or connect when it is looked at
    if len(_kinds) > 10_000:
        _kinds.clear()
    _kinds[kind] = what
    return what


def _is_iterator(kind: type) -> bool:
    return kind in _ITERATORS or kind.__module__ == "itertools"


def _users_modules() -> list[tuple[str, dict[str, Any]]]:
    global _modules
    if _modules[0] != len(sys.modules):  # looked for again when modules were imported
        theirs = []
        for name, module in list(sys.modules.items()):
            values = getattr(module, "__dict__", {})
            file = values.get("__file__")
            if isinstance(file, str) and is_users(file):
                theirs.append((name, values))
        _modules = len(sys.modules), theirs
    return _modules[1]


_Root = tuple[dict[str, Any], tuple[str, ...], int, Any]
"""Named things, what names them all, and that one's id and object (None: a frame)."""


def _names_of_frames(
    frame: types.FrameType | None, cleared: list[dict[str, Any]], modules: set[int], *, theirs: bool
) -> Iterator[_Root]:
    while frame is not None:
        code = frame.f_code
        if is_users(code.co_filename) == theirs and not code.co_filename.startswith(_OURS):
            if code.co_flags & 1:  # CO_OPTIMIZED: a function, its f_locals is a copy
                yield _names_of(frame, cleared)
            if theirs and id(frame.f_globals) not in modules:
                modules.add(id(frame.f_globals))
                name = frame.f_globals.get("__name__", "?")
                yield frame.f_globals, (f"module {name}",), id(frame.f_globals), frame.f_globals
        frame = frame.f_back


def _names_of_generators(cleared: list[dict[str, Any]]) -> Iterator[_Root]:
    for generator in list(_generators):
        if generator.gi_frame is not None and not generator.gi_running:
            yield _names_of(generator.gi_frame, cleared)


def _names_of(frame: types.FrameType, cleared: list[dict[str, Any]]) -> _Root:
    code = frame.f_code
    values = without_collection(partial(getattr, frame, "f_locals"))
    # up to 3.12 the copy stays with the frame and would keep what it holds alive; where
    # more than the frame and this name refer to it, the user keeps what locals() gave
    if sys.version_info < (3, 13) and sys.gettrace() is None and sys.getrefcount(values) <= 3:
        cleared.append(values)
    return dict(values), (f"{function_name(code)}() of {Path(code.co_filename).name}",), id(code), None


def note_generators() -> None:
    """Remember, weakly, the user's generators that were made of late.

    ``for batch in stream():`` has no name for its generator; the heap has, and what was made just before is young.
    """
    if sum(gc.get_count()[:2]) > MAX_YOUNG:
        return
    for generation in (0, 1):
        for thing in gc.get_objects(generation)[:MAX_YOUNG]:
            if type(thing) is types.GeneratorType and is_users(thing.gi_code.co_filename):
                _generators.add(thing)


def _names_of_modules(modules: set[int]) -> Iterator[_Root]:
    for name, values in _users_modules():
        if id(values) not in modules:
            modules.add(id(values))
            yield values, (f"module {name}",), id(values), values


def _children(thing: Any) -> Iterator[tuple[str, Any]]:
    kind = type(thing)
    if isinstance(thing, dict):
        if len(thing) <= MANY:
            for key, value in list(thing.items()):
                yield f"[{key!r}]" if isinstance(key, (str, int)) else "[...]", value
    elif isinstance(thing, (list, tuple, deque)):
        if len(thing) <= MANY:
            for index, value in enumerate(list(thing)):
                yield f"[{index}]", value
    elif isinstance(thing, types.FunctionType):
        for name, cell in zip(thing.__code__.co_freevars, thing.__closure__ or (), strict=False):
            with suppress(ValueError):  # not bound yet
                yield f" closure {name}", cell.cell_contents
        for index, value in enumerate(thing.__defaults__ or ()):
            yield f" default {index}", value
        yield from _attributes(thing.__dict__)
    elif isinstance(thing, types.MethodType):
        yield ".__self__", thing.__self__
    elif isinstance(thing, types.GeneratorType):
        if thing.gi_frame is not None:
            yield from ((f" local {name}", value) for name, value in dict(thing.gi_frame.f_locals).items())
    elif _is_iterator(kind):
        # what they go through, and what they keep to give it again
        yield from (
            ("" if type(referent) is list else f" {type(referent).__name__}", referent)
            for referent in gc.get_referents(thing)
        )
    elif not isinstance(thing, (types.ModuleType, types.CodeType, types.FrameType)):
        values = getattr(thing, "__dict__", None)
        if type(values) is dict:
            yield from _attributes(values)
        if kind.__module__ in ("builtins", "numpy", "torch"):
            return
        # state that belongs to the class: caches, registries
        if is_users(getattr(sys.modules.get(kind.__module__), "__file__", None) or "<frozen"):
            for name, value in list(vars(kind).items()):
                if isinstance(value, (list, dict, set, deque)):
                    yield f".{name}", value
        for name in getattr(kind, "__slots__", ()) or ():
            if isinstance(name, str) and hasattr(thing, name) and not name.startswith("__"):
                yield f".{name}", getattr(thing, name)


def _attributes(values: dict[str, Any]) -> list[tuple[str, Any]]:
    return [(f".{name}", value) for name, value in list(values.items()) if _worth_a_look(value)]


def function_name(code: types.CodeType) -> str:
    """Return a function's name with those it is defined in."""
    return getattr(code, "co_qualname", code.co_name).replace("<locals>.", "")


def _tensor_bytes(tensor: Any) -> int:
    try:
        return int(tensor.numel() * tensor.element_size())
    except (RuntimeError, TypeError):  # meta, nested, sparse
        return 0
