"""What code changes, what expressions read, and which of them give the same whenever they are computed."""

from __future__ import annotations

import ast
import builtins
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cached_property, lru_cache

from torchtriage.diagnose.lint.facts import Class, Module, SourceCall, SourceFunction
from torchtriage.diagnose.lint.syntax import arguments, literal, names_in, path_of, root_of
from torchtriage.diagnose.lint.torch_names import words
from torchtriage.diagnose.lint.turns import FileFacts
from torchtriage.diagnose.lint.work_syntax import bound_names, local_names, parameters
from torchtriage.diagnose.lint.work_words import MUTATORS, PURE_BUILTINS, PURE_LIBRARY, PURE_METHODS, RANDOM

# what makes something from settings alone: worth a line, and the same each time
MAKES = re.compile(
    r"^(re\.compile|torch\.utils\.data\.\w+|json\.loads?|yaml\.(safe_|full_)?load|pickle\.loads?|tomllib\.loads?|csv\.\w*reader|pathlib\.Path"
    r"|numpy\.(load|loadtxt|genfromtxt|memmap|fromfile)|pandas\.(read_\w+|DataFrame)|open|torch\.(load|compile|device)"
    r"|torch\.nn\.\w*Loss|torchvision\.(transforms|models)\..+|torchaudio\.transforms\..+|albumentations\..+"
    r"|(concurrent\.futures|multiprocessing\.pool)\.\w+|functools\.partial|torchmetrics\..+|tiktoken\..+|spacy\.load"
    r"|sklearn\.\w+\.[A-Z]\w+|os\.path\.\w+|torch\.hann_window|timm\.create_model|torch\.jit\.load|joblib\.load)$"
    r"|(^|\.)from_pretrained$|^transformers\."
)
KEEPS = words("print train eval zero_grad backward parameters named_parameters state_dict info debug write format")
FORM = words("device dtype shape ndim training")
LIBRARIES = words("torch np numpy")
"""What has functions of the names that methods have that change their object: ``torch.sort``, ``np.add``."""
FILLERS = words("fill_diagonal put copyto place putmask")
"""Functions of NumPy's that change their first argument, as those of torch do that end in ``_``."""
FITS = words("fit fit_transform transform predict read read_text read_bytes splitlines eval")


def loads(node: ast.AST) -> set[str]:
    """Return the paths that a piece of syntax reads: ``x``, ``self.size``; those of comprehensions left out."""
    own = comprehended(node)
    return {path for path in _paths(node) if path.partition(".")[0] not in own}


def comprehended(node: ast.AST) -> set[str]:
    """Return the variables of the comprehensions in a piece of syntax."""
    return {name for part in ast.walk(node) if isinstance(part, ast.comprehension) for name in names_in(part.target)}


def _paths(node: ast.AST) -> Iterator[str]:
    path = path_of(node) if isinstance(node, ast.Name | ast.Attribute) else ""
    if path and isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Load):
        yield path
        return
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and path_of(node.func.value):
        owner = path_of(node.func.value)
        yield f"self.{node.func.attr}" if owner == "self" else owner
        children: Iterable[ast.AST] = [*node.args, *node.keywords]
    else:
        children = ast.iter_child_nodes(node)
    for child in children:
        yield from _paths(child)


def written(nodes: Iterable[ast.AST]) -> set[str]:
    """Return the paths that code binds, or whose attributes, entries or contents it changes."""
    found: set[str] = set()
    for root in nodes:
        found |= bound_names(root)
        if isinstance(root, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(root.name)
        for node in ast.walk(root):
            target = node.target if isinstance(node, ast.NamedExpr) else _changed_in_place(node)
            if isinstance(node, ast.Import | ast.ImportFrom):
                found |= {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ExceptHandler) and node.name:
                found.add(node.name)
            while isinstance(target, ast.Attribute | ast.Subscript | ast.Call) and not path_of(target):
                target = target.func if isinstance(target, ast.Call) else target.value
            if target is not None:
                found.add(path_of(target))
    return found - {""}


def mutated(nodes: Iterable[ast.AST]) -> set[str]:
    """Return the variables whose contents code changes in place."""
    found: set[str] = set()
    for node in (part for root in nodes for part in ast.walk(root)):
        target = node.target if isinstance(node, ast.AugAssign) else _changed_in_place(node)
        root = root_of(target) if target is not None else None
        if isinstance(root, ast.Name):
            found.add(root.id)
    return found


def _changed_in_place(node: ast.AST) -> ast.expr | None:
    """Return what a piece of syntax itself writes to: an attribute, an object with entries, a receiver, ``out=``."""
    if isinstance(node, ast.Attribute | ast.Subscript) and not isinstance(node.ctx, ast.Load):
        return node.value if isinstance(node, ast.Subscript) else node
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        name = node.func.attr
        of_library = path_of(node.func.value) in LIBRARIES
        changes = name in (FILLERS if of_library else MUTATORS) or (name[-1] == "_" and name[0] != "_")
        changed = node.args[0] if of_library and node.args else node.func.value
        return changed if changes else None
    return node.value if isinstance(node, ast.keyword) and node.arg == "out" else None


def meets(path: str, others: Iterable[str]) -> bool:
    """Return whether a path is one of others, a part of one, or holds one."""
    return any(f"{path}.".startswith(f"{other}.") or f"{other}.".startswith(f"{path}.") for other in others)


class Flow:
    """What the functions of a file compute and change."""

    def __init__(self, module: Module) -> None:
        self.module = module
        self.facts = FileFacts(module)
        self._pure: dict[SourceFunction, bool] = {}

    def call(self, node: ast.Call) -> SourceCall | None:
        """Return what is known of a call by its syntax."""
        return self.module.calls_by_node.get(node)

    def changes(self, nodes: Iterable[ast.AST]) -> set[str]:
        """Return what code writes, functions of the file that it calls with it included."""
        nodes = list(nodes)
        found = written(nodes)
        for node in (part for root in nodes for part in ast.walk(root) if isinstance(part, ast.Call)):
            known = self.call(node)
            for callee in known.callees if known is not None else ():
                found |= self._changed_by(node, callee)
        for function in self.reached(nodes):
            own = local_names(function.node) | {"self", "cls"}
            found |= {path for path in written(function.node.body) if path.partition(".")[0] not in own}
        return found

    def reached(self, nodes: Iterable[ast.AST]) -> set[SourceFunction]:
        """Return the functions of the file that code runs, at any depth."""
        inside = [part for root in nodes for part in ast.walk(root) if isinstance(part, ast.Call)]
        return self.facts.reached([known for node in inside if (known := self.call(node)) is not None])

    def _changed_by(self, node: ast.Call, callee: SourceFunction) -> set[str]:
        inside = written(callee.node.body) - bound_names(callee.node)
        given = callee.given_by(node)
        found = {path_of(given[name]) for path in inside if (name := path.partition(".")[0]) in given}
        if isinstance(node.func, ast.Attribute) and path_of(node.func.value):
            found |= {f"{path_of(node.func.value)}{path[4:]}" for path in inside if path.startswith("self.")}
        return found - {""}

    def handed(self, nodes: Iterable[ast.AST]) -> set[str]:
        """Return the objects that code calls, or hands to calls, of which nothing is known: they may be changed."""
        found: set[str] = set()
        for node in (part for root in nodes for part in ast.walk(root) if isinstance(part, ast.Call)):
            known = self.call(node)
            name = self.module.name_of(node.func)
            last = node.func.attr if isinstance(node.func, ast.Attribute) else name
            if (known is not None and known.callees) or last in PURE_METHODS or last in KEEPS:
                continue
            if name in PURE_BUILTINS or PURE_LIBRARY.match(name) or MAKES.search(name):
                continue
            found |= {path_of(item.value if isinstance(item, ast.Starred) else item) for item in arguments(node)}
            if isinstance(node.func, ast.Attribute) and path_of(node.func.value).partition(".")[0] not in (
                self.module.aliases
            ):
                found.add(path_of(node.func.value))
                found |= {path_of(node.func)} if path_of(node.func).startswith("self.") else set()
        return found - {"", "self"}

    def handed_over(self, nodes: Iterable[ast.AST]) -> set[str]:
        """Return the attributes read in code that calls of which nothing is known may change."""
        nodes = list(nodes)
        handed = self.handed([*nodes, *(function.node for function in self.reached(nodes))])
        reads = set().union(*(self.reads(node) for node in nodes))
        return {
            path
            for path in reads
            if path.rpartition(".")[2] not in FORM and any(path.startswith(f"{item}.") for item in handed)
        }

    def lasting(self, owner: Class) -> set[str]:
        """Return the attributes that a class's ``__init__`` sets and nothing changes afterwards."""
        init = owner.methods.get("__init__")
        if init is None or owner.children or any(owner.name in _extended(other) for other in self.module.others):
            return set()
        kept = {path for path in written(init.node.body) if path.startswith("self.")}
        kept |= {f"self.{name}" for name in owner.fields}
        later = [method.node for name, method in owner.methods.items() if name != "__init__" and method.owner is owner]
        changed = {path for node in later for path in written(node.body) if path.startswith("self.")}
        return {
            path
            for path in kept
            if not (meets(path, changed) or path[5:].partition(".")[0] in self.set_by_others or self.learns({path}))
        }

    @cached_property
    def set_by_others(self) -> set[str]:
        """The attributes that code of the project sets, or changes, of objects other than its ``self``."""
        return set().union(*map(_set_of_others, (self.module, *self.module.others)))

    @cached_property
    def constants(self) -> set[str]:
        """The names that the file binds once outside of functions, and that no function changes."""
        module, bound = self.module, Counter[str]()
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and module.scope(node) is module.tree:
                bound[node.id] += 1 + (module.around(node, ast.For, ast.While, ast.AsyncFor) is not None)
        named = {node.name for node in module.tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
        once = {name for name, n in bound.items() if n == 1} | named | set(module.aliases)
        shared = {name for node in ast.walk(module.tree) if isinstance(node, ast.Global) for name in node.names}
        return once - shared - mutated(module.tree.body) - _changed_elsewhere(module)

    def learns(self, paths: Iterable[str]) -> bool:
        """Return whether training changes any of these."""
        learned = self.facts.learned
        return any(path in learned or any(f".{part}" in learned for part in path.split(".")[1:]) for path in paths)

    def pure(self, function: SourceFunction) -> bool:
        """Return whether a function gives the same for the same and changes nothing."""
        if function not in self._pure:
            self._pure[function] = False  # recursion is not looked through
            self._pure[function] = self._is_pure(function)
        return self._pure[function]

    def _is_pure(self, function: SourceFunction) -> bool:
        node = function.node
        if function.is_generator or isinstance(node, ast.AsyncFunctionDef):
            return False
        if any(isinstance(part, ast.Global | ast.Nonlocal | ast.Yield | ast.Await) for part in ast.walk(node)):
            return False
        own = bound_names(node)
        if any(path.partition(".")[0] not in own for path in written(node.body)):
            return False
        if mutated(node.body) & parameters(node):
            return False
        known = own | parameters(node) | self.constants | set(dir(builtins))
        if any(path.partition(".")[0] not in known for statement in node.body for path in loads(statement)):
            return False
        return all(self.repeats(statement, own) for statement in node.body)

    def reads(self, node: ast.AST) -> set[str]:
        """Return the paths that an expression reads, in methods of the file that it calls as well."""
        found = loads(node)
        for part in ast.walk(node):
            known = self.call(part) if isinstance(part, ast.Call) else None
            method = path_of(known.node.func) if known is not None else ""
            if known is not None and known.callees and method.startswith("self."):
                inside = {path for callee in known.callees for path in loads(callee.node) if path.startswith("self.")}
                found = found - {method} | inside
        return found

    def repeats(self, node: ast.AST, own: Iterable[str] = ()) -> bool:
        """Return whether an expression gives the same for the same and does no more; ``own`` : what it may change."""
        if isinstance(node, ast.NamedExpr | ast.Await | ast.Yield | ast.YieldFrom):
            return False
        if isinstance(node, ast.Call) and not self._repeats(node, set(own)):
            return False
        return all(self.repeats(child, own) for child in ast.iter_child_nodes(node))

    def _repeats(self, node: ast.Call, own: set[str]) -> bool:
        known = self.call(node)
        name = self.module.name_of(node.func)
        last = node.func.attr if isinstance(node.func, ast.Attribute) else name
        if RANDOM.search(name) or RANDOM.search(last):
            return False
        if known is not None and known.callees:
            return all(self.pure(callee) for callee in known.callees)
        if name in PURE_BUILTINS or PURE_LIBRARY.match(name):
            return True
        if name == "open":
            mode = [*node.args[1:2], *(item.value for item in node.keywords if item.arg == "mode")]
            return bool(node.args) and all(getattr(item, "value", "") in ("r", "rb", "rt") for item in mode)
        if MAKES.search(name) or (not name and last == "from_pretrained"):
            return True
        if isinstance(node.func, ast.Attribute):
            root = path_of(node.func.value).partition(".")[0]
            changes = last in MUTATORS or last.endswith("_")
            return (changes and root in own) or last in PURE_METHODS or last in FITS
        return False


@lru_cache(maxsize=128)
def _set_of_others(module: Module) -> set[str]:
    paths = {path for path in written([module.tree]) if path.count(".") > path.startswith("self.")}
    return {path.rpartition(".")[2] for path in paths | _set_by_name(module)}


def _set_by_name(module: Module) -> set[str]:
    """Return what ``setattr(x, "size", 3)`` sets: ``x.size``."""
    calls = [call.node for call in module.calls if path_of(call.node.func) == "setattr" and len(call.node.args) > 1]
    named = [(path_of(node.args[0]), literal(node.args[1])) for node in calls]
    return {f"{path}.{name}" for path, name in named if isinstance(name, str)}


def _changed_elsewhere(module: Module) -> set[str]:
    """Return the names of a file that others set, ``settings.SIZE = 3``, or whose contents they change."""
    here = module.path.removesuffix(".py").removesuffix("/__init__").rpartition("/")[2]
    changed = [path.rpartition(".") for other in module.others for path in _changed_imports(other)]
    return {name for holder, _, name in changed if holder.rpartition(".")[2] == here}


@lru_cache(maxsize=128)
def _changed_imports(module: Module) -> set[str]:
    by_name = _set_by_name(module)
    paths, changed = written([module.tree]) | by_name, mutated([module.tree]) | {path.split(".")[0] for path in by_name}
    imported = changed & module.aliases.keys()
    return {
        f"{module.aliases[name]}{path.removeprefix(name)}"
        for name in imported
        for path in {path for path in paths if path.startswith(f"{name}.")} or {name}
    }


@lru_cache(maxsize=128)
def _extended(module: Module) -> set[str]:
    """Return the classes that those of a file are made of."""
    classes = [node for node in ast.walk(module.tree) if isinstance(node, ast.ClassDef)]
    return {path_of(base).rpartition(".")[2] for node in classes for base in node.bases}


flow_of = lru_cache(maxsize=8)(Flow)
"""What a file's functions compute and change, made once."""
