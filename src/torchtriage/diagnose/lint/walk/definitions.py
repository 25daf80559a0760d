"""Imports, classes and functions: what names stand for, and which functions are read."""

from __future__ import annotations

import ast

from torchtriage.diagnose.lint import torch_names
from torchtriage.diagnose.lint.abstract_values import A_MODULE, CPU, DEVICE, GUESSED_TENSOR, HOST, UNKNOWN, Value
from torchtriage.diagnose.lint.facts import Class, SourceFunction, is_step
from torchtriage.diagnose.lint.syntax import defaults, literal, path_of, walk
from torchtriage.diagnose.lint.walk.heuristics import annotated, named
from torchtriage.diagnose.lint.walk.walker import Env, ReadStatement, Walker
from torchtriage.diagnose.lint.work_syntax import parameters


def bind_parameters(walker: Walker, function: SourceFunction, local: Env) -> None:
    """Say what a function is given: by annotation, default, name, or its first caller."""
    args = function.node.args
    left_out = defaults(function.node)
    tensors = is_step(function) and function.name == "forward"
    for index, arg in enumerate([*args.posonlyargs, *args.args, *args.kwonlyargs]):
        if index == 0 and function.owner is not None and arg.arg in ("self", "cls"):
            if arg.arg == "self":
                local["self"] = Value("object", of=function.owner.name)
            continue
        given = left_out.get(arg.arg)
        value = annotated(arg.annotation)
        if value is None and given is not None and literal(given) not in (None, ...):
            value = HOST
        if value is None and not tensors:
            value = named(arg.arg)
        if value is None and (tensors or function.compiled) and given is None:
            value = GUESSED_TENSOR
        if value is None:
            value = named(arg.arg) or UNKNOWN
        known = walker.module.classes.get(path_of(arg.annotation)) if arg.annotation else None
        if known is not None:
            value = A_MODULE.but(of=known.name) if known.is_module else Value("object", CPU, of=known.name)
        argument = function.given.get(arg.arg)
        if argument is not None and (value.kind in ("unknown", argument.kind) or value.guess):
            value = argument
        if function.owner and function.owner.is_lightning and arg.arg == "batch":
            value = Value("tensor", DEVICE)
        elif arg.arg in ("batch_idx", "dataloader_idx"):
            value = HOST
        local[arg.arg] = value


def _import(walker: Walker, node: ast.Import) -> None:
    for name in node.names:
        if name.asname:
            walker.aliases[name.asname] = name.name
        else:
            root = name.name.partition(".")[0]
            walker.aliases[root] = root


def _import_from(walker: Walker, node: ast.ImportFrom) -> None:
    base = "." * node.level + (node.module or "")
    for name in node.names:
        walker.aliases[name.asname or name.name] = f"{base}.{name.name}" if base else name.name


def _class(walker: Walker, node: ast.ClassDef) -> None:
    for decorator in (*node.decorator_list, *node.bases):
        walker.eval(decorator)
    bases = tuple(walker.module.name_of(base) for base in node.bases)
    local = [walker.module.classes[base] for base in bases if base in walker.module.classes]
    here = Class(
        node.name,
        node,
        bases,
        any(torch_names.MODULE_BASES.search(base) for base in bases) or any(item.is_module for item in local),
        any(torch_names.LIGHTNING.search(base) for base in bases) or any(item.is_lightning for item in local),
    )
    here.parents = tuple(local)
    for parent in local:
        parent.children.append(here)
        here.fields += parent.fields
    walker.module.classes[node.name] = here
    speaking = {
        id(statement)
        for statement in node.body
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef) and walker.relevance.speaks(statement)
    }
    for statement in node.body:
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
            # what the others' names are, and who calls them in each step
            frames = statement.name in ("__init__", "setup", "forward", "training_step")
            needed = bool(speaking) or walker.relevance.folds
            asked = id(statement) in speaking or _others_call(statement.name)
            _define(walker, statement, here, read=asked or (frames and needed))
        elif isinstance(statement, ast.ClassDef):
            _class(walker, statement)
        elif isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            here.fields.append(statement.target.id)
            if statement.value is not None:
                here.attributes[statement.target.id] = walker.eval(statement.value)
        elif isinstance(statement, ast.Assign):
            value = walker.eval(statement.value)
            for target in statement.targets:
                if isinstance(target, ast.Name):
                    here.attributes[target.id] = value


def _others_call(name: str) -> bool:
    """Return whether a trainer or a loader calls a function of this name, in each step or for each sample."""
    return torch_names.HOOK.match(name) is not None or name.startswith("__getitem") or "collat" in name


def _fired(node: ast.FunctionDef | ast.AsyncFunctionDef) -> tuple[str, str, str] | None:
    """Return which parameter says the name in ``getattr(callback, f"on_{event}")``, and what stands around it."""
    own = parameters(node)
    for call in walk(node):
        if not isinstance(call, ast.Call) or path_of(call.func) != "getattr" or len(call.args) < 2:
            continue
        parts = call.args[1].values if isinstance(call.args[1], ast.JoinedStr) else [call.args[1]]
        names = [part.value if isinstance(part, ast.FormattedValue) else part for part in parts]
        at = next((i for i, part in enumerate(names) if isinstance(part, ast.Name) and part.id in own), None)
        if at is not None and all(isinstance(part, ast.Constant) for part in (*names[:at], *names[at + 1 :])):
            before, after = ("".join(str(literal(part)) for part in some) for some in (names[:at], names[at + 1 :]))
            return path_of(names[at]), before, after
    return None


def _define(
    walker: Walker,
    node: ast.FunctionDef | ast.AsyncFunctionDef,
    owner: Class | None = None,
    *,
    read: bool | None = None,
) -> None:
    decorators, no_grad, compiled, serves = [], False, False, False
    for decorator in node.decorator_list:
        target = decorator.func if isinstance(decorator, ast.Call) else decorator
        name = walker.module.name_of(target)
        if name == "functools.partial" and isinstance(decorator, ast.Call) and decorator.args:
            name = walker.module.name_of(decorator.args[0])
        decorators.append(name)
        no_grad = no_grad or name in torch_names.NO_GRAD or walker.switches_grad_off(name)
        compiled = compiled or name == "torch.compile"
        serves = serves or torch_names.ROUTE.search(name) is not None
        if isinstance(decorator, ast.Call):
            walker.eval(decorator)
    serves = serves or (owner is not None and torch_names.HANDLER.match(node.name) is not None)
    outer = walker.function
    parts = [outer.qualname] if outer else []
    parts += [owner.name] if owner else []
    function = SourceFunction(
        node.name,
        ".".join((*parts, node.name)),
        node,
        owner,
        outer,
        tuple(decorators),
        no_grad,
        compiled,
        serves=serves,
    )
    if "getattr(" in walker.relevance.text_of(node):
        function.fires = _fired(node)
    for default in defaults(node).values():
        walker.eval(default)
    if owner is not None:
        owner.methods[node.name] = function
    else:
        walker.by_name.setdefault(node.name, function)
        if outer is not None:
            walker.scopes[-1].setdefault(node.name, Value("callable", of=node.name, calls=(function,)))
    walker.module.functions.append(function)
    speaks = read
    if read is None:
        speaks = walker.relevance.speaks(node) or _others_call(node.name)
        speaks = speaks or (owner is None and walker.relevance.calls_model(node))
    walker.unread[function] = list(walker.scopes)
    if compiled or serves or speaks:
        walker.speaking.add(function)


STATEMENTS: dict[type, ReadStatement] = {
    ast.Import: _import,
    ast.ImportFrom: _import_from,
    ast.ClassDef: _class,
    ast.FunctionDef: _define,
    ast.AsyncFunctionDef: _define,
}
