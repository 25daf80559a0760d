"""What the names in one function body stand for, as far as assignments in the same file show."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Sequence
from functools import lru_cache

from torchtriage.core.source.functions import Function, own_nodes


def called_name(func: ast.expr) -> str:
    """Return the last name of what is called, empty where it has none."""
    while isinstance(func, ast.Subscript):
        func = func.value
    if isinstance(func, ast.Attribute):
        return func.attr
    return func.id if isinstance(func, ast.Name) else ""


def _upper(name: str) -> bool:
    return name.lstrip("_")[:1].isupper()


class _ModuleNames:
    """What a file binds: top-level names, imports, and which of its functions are generators."""

    def __init__(self, module: ast.Module) -> None:
        self.globals: dict[str, list[ast.expr]] = {}
        self.functions: dict[str, ast.AST] = {}
        self.imported: set[str] = set()
        self.generators: set[str] = set()
        self.properties: dict[str, set[str]] = {}
        for node in own_nodes(module):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                self.functions[node.name] = node
            _bind(node, self.globals)
        for node in ast.walk(module):
            if isinstance(node, ast.Import | ast.ImportFrom):
                self.imported |= {(i.asname or i.name).split(".")[0] for i in node.names}
            elif (
                isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
                # a decorator may call it in its own way, as contextmanager does
                and not node.decorator_list
                and (
                    isinstance(node, ast.AsyncFunctionDef)
                    or any(isinstance(i, ast.Yield | ast.YieldFrom) for i in own_nodes(node))
                )
            ):
                self.generators.add(node.name)
            elif isinstance(node, ast.ClassDef):
                for line in node.body:
                    if isinstance(line, ast.Assign) and isinstance(line.value, ast.Call):
                        # value = property(get_value, set_value)
                        makers = {called_name(arg) for arg in line.value.args}
                        for target in line.targets:
                            self.properties.setdefault(called_name(target), set()).update(makers)


_module_names = lru_cache(maxsize=16)(_ModuleNames)


@lru_cache(maxsize=64)
def _class_names(owner: ast.ClassDef) -> tuple[dict[str, list[ast.expr]], set[str]]:
    """Return what the methods of a class bind attributes of ``self`` to, and their names."""
    attributes: dict[str, list[ast.expr]] = {}
    methods: set[str] = set()
    for line in owner.body:
        if isinstance(line, ast.FunctionDef | ast.AsyncFunctionDef):
            methods.add(line.name)
            for inner in ast.walk(line):
                _bind(inner, attributes, owner="self")
    return attributes, methods


class Names:
    """What the names a body calls stand for, as far as assignments in the same file show."""

    def __init__(self, function: Function, module: ast.Module) -> None:
        self.params: set[str] = set()
        node = function.node
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            given = node.args
            named = (*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg)
            self.params = {arg.arg for arg in named if arg is not None}
        self.local: dict[str, list[ast.expr]] = {}
        self.held: dict[str, list[ast.expr]] = {}
        for item in own_nodes(node):
            _bind(item, self.local)
            if not isinstance(item, ast.For | ast.AsyncFor | ast.comprehension):
                # what a loop hands out is not what it reads
                _bind(item, self.held)
        around = _module_names(module)
        self.globals, self.functions = around.globals, around.functions
        self.imported, self.generators = around.imported, around.generators
        self.properties = around.properties
        self.attributes: dict[str, list[ast.expr]] = {}
        self.methods: set[str] = set()
        if function.owner is not None:
            self.attributes, self.methods = _class_names(function.owner)

    def of(self, func: ast.expr) -> tuple[frozenset[str], bool, bool]:
        """Return the classes whose instance is called, whether it has no name, and is known."""
        values, target = self._values(func)
        if values is None:
            if isinstance(func, ast.Name):
                if func.id in self.functions:
                    return frozenset(), False, True
                # a parameter, or a variable of an enclosing function
                named = func.id in self.imported or hasattr(builtins, func.id)
                return frozenset(), func.id in self.params or not named, False
            own = target in self.methods
            return frozenset(), not own and not isinstance(func, ast.Attribute), own
        classes: set[str] = set()
        nameless = False
        for value in values:
            outer = called_name(value.func) if isinstance(value, ast.Call) else ""
            made = isinstance(value, ast.ListComp | ast.List | ast.Tuple)
            if made or _upper(outer) or outer in ("list", "dict"):
                inside = [node for node in ast.walk(value) if isinstance(node, ast.Call)]
                classes |= {name for item in inside if _upper(name := called_name(item.func))}
            else:
                nameless = True
        return (frozenset() if nameless else frozenset(classes)), nameless, False

    def builtin(self, func: ast.expr) -> bool:
        """Return whether a built-in is called by its own name, which nothing here hides."""
        if not isinstance(func, ast.Name) or not hasattr(builtins, func.id):
            return False
        hiding = (self.params, self.local, self.globals, self.functions, self.imported)
        return not any(func.id in item for item in hiding)

    def frames(self, func: ast.expr) -> set[str]:
        """Return what a frame called this way can be named, aliases included."""
        found = {called_name(func)} if isinstance(func, ast.Name | ast.Attribute) else set()
        for value in self._values(func)[0] or ():
            if isinstance(value, ast.Name | ast.Attribute):
                found.add(called_name(value))
        return found - {""}

    def pending(self, node: ast.expr) -> set[str]:
        """Return the names of generators and coroutines that a variable may hold."""
        found: set[str] = set()
        values = [node]
        if isinstance(node, ast.Name):
            values += self.held.get(node.id, [])
            for some in self.local.get(node.id, []):
                if isinstance(some, ast.Tuple | ast.List):
                    # for part in (first, second): each of them
                    for part in some.elts:
                        values += self.held.get(part.id, []) if isinstance(part, ast.Name) else [part]
        for value in values:
            if isinstance(value, ast.GeneratorExp):
                found.add("<genexpr>")
            if isinstance(value, ast.Call):
                found |= self.frames(value.func)
                for item in ast.walk(value):
                    if isinstance(item, ast.Call):
                        # closing(lines()) reads lines(), map(f, lines) calls f
                        found |= self.frames(item.func) & self.generators
                        if called_name(item.func) in ("map", "filter") and item.args:
                            found |= self.frames(item.args[0])
        return found

    def _values(self, func: ast.expr) -> tuple[list[ast.expr] | None, str]:
        while isinstance(func, ast.Subscript):
            func = func.value
        if isinstance(func, ast.Attribute):
            if isinstance(func.value, ast.Name) and func.value.id == "self":
                return self.attributes.get(func.attr), func.attr
            return None, ""
        if isinstance(func, ast.Name):
            values = self.local.get(func.id)
            if values is not None:
                # a loop variable or an alias stands for the attribute it comes from
                out: list[ast.expr] = []
                for value in values:
                    held = self.attributes.get(_self_attribute(value) or "")
                    out += held if held else [value]
                return out, func.id
            if func.id not in self.params and func.id in self.globals:
                return self.globals[func.id], func.id
            return None, func.id
        return None, ""


def _self_attribute(value: ast.expr) -> str | None:
    if isinstance(value, ast.Call) and called_name(value.func) in ("enumerate", "zip", "reversed"):
        for arg in value.args:
            if (name := _self_attribute(arg)) is not None:
                return name
    while isinstance(value, ast.Subscript):
        value = value.value
    if isinstance(value, ast.Attribute) and isinstance(value.value, ast.Name) and value.value.id == "self":
        return value.attr
    return None


def _bind(node: ast.AST, into: dict[str, list[ast.expr]], owner: str = "") -> None:
    """Note what names (or attributes of ``owner``) a statement binds, and to what."""
    pairs: list[tuple[ast.expr, ast.expr]] = []
    if isinstance(node, ast.Assign):
        pairs = [(target, node.value) for target in node.targets]
    elif isinstance(node, ast.AnnAssign | ast.NamedExpr) and node.value is not None:
        pairs = [(node.target, node.value)]
    elif isinstance(node, ast.For | ast.AsyncFor | ast.comprehension):
        pairs = [(node.target, node.iter)]
    elif isinstance(node, ast.With | ast.AsyncWith):
        pairs = [(i.optional_vars, i.context_expr) for i in node.items if i.optional_vars]
    for target, value in pairs:
        targets = target.elts if isinstance(target, ast.Tuple | ast.List) else [target]
        values: Sequence[ast.expr] = [value] * len(targets)
        if isinstance(value, ast.Tuple | ast.List) and len(value.elts) == len(targets) > 1:
            values = value.elts
        elif len(targets) > 1 and not isinstance(node, ast.For | ast.AsyncFor | ast.comprehension):
            # what a tuple unpacks to is nobody's class
            values = [ast.Constant(None)] * len(targets)
        for item, what in zip(targets, values, strict=True):
            if not owner and isinstance(item, ast.Name):
                into.setdefault(item.id, []).append(what)
            elif (
                owner
                and isinstance(item, ast.Attribute)
                and isinstance(item.value, ast.Name)
                and item.value.id == owner
            ):
                into.setdefault(item.attr, []).append(what)
