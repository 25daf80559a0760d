"""Which models of a program its optimizers train, which are left out, and which code takes gradients."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from torchtriage.diagnose.lint.base import Module, SourceCall, SourceFunction, literal, text_of
from torchtriage.diagnose.lint.syntax import argument, arguments, is_self, method_of, names_in, path_of

GRADIENTS = re.compile(
    r"backward|autograd\.grad|\bgrad\(|requires_grad|enable_grad|set_grad_enabled|\.grad\b|jacobian|vjp"
)
_GRADIENT_WANTED = re.compile(r"requires_grad(_\(|\s*=(?!=))|freeze|add_param_group|unfreeze")
_MADE_ELSEWHERE = re.compile(r"models\.|create_model\(|hub\.load\(|from_pretrained\(|torch\.load\(|jit\.load\(")
_SIZE = re.compile(r"dim|size|width|hidden|features|channels|config|cfg|num_|n_|embed")
_DEPTH = 4


def takes_gradients(module: Module, node: ast.AST, words: re.Pattern[str] = GRADIENTS) -> bool:
    """Return whether code takes gradients, or runs a function or module of the file that does, at any depth."""
    texts = [ast.get_source_segment(module.text, node) or "", *map(module.text_of, module.reached(node))]
    return any(words.search(text) for text in texts)


@dataclass(frozen=True)
class Trained:
    """What optimizers have: models by the last part of their names, and for a class the parts that they have.

    ``parts`` : of a class of the file the attributes whose weights are trained, where not all are. ``roots`` :
    models from elsewhere of which optimizers have one part. ``around`` : models of which they have any.
    """

    module: Module
    names: frozenset[str]
    parts: dict[str, set[str]]
    roots: frozenset[str]
    around: frozenset[str]

    def leaves_out(self, call: SourceCall) -> bool:
        """Return whether a model is run whose weights no optimizer has, on inputs that nothing trains."""
        if not self._is_outside(call):
            return False
        function = call.context.function
        return not any(self._is_trained(node, function) for node in arguments(call.node))

    def _is_outside(self, call: SourceCall) -> bool:
        func, owner = call.node.func, call.context.owner
        if not self._has_weights(call):
            return False
        last = self.module.name_of(func).rpartition(".")[2]
        if last == "forward" and isinstance(func, ast.Attribute):
            last = self.module.name_of(func.value).rpartition(".")[2]
        if owner is not None and owner.is_module:
            parts = self.parts.get(owner.name)
            own = isinstance(func, ast.Attribute) and is_self(func.value)
            return parts is not None and own and last not in parts and self._is_made(last) and not self._is_inside(last)
        if not last or last in self.names:
            return False
        if last in self.roots:
            return call.receiver.of not in self.module.classes
        if last in self.around or call.receiver.of in self.parts:
            return False
        return self._is_made(last) and not self._is_inside(last)

    def _has_weights(self, call: SourceCall) -> bool:
        of = call.receiver.of
        known = self.module.classes.get(of)
        if known is not None:
            return any(value.kind == "module" or value.grad for value in known.attributes.values())
        return not of.startswith("torch.nn.") or of.endswith("Sequential")

    def _is_made(self, last: str) -> bool:
        """Return whether a model of this name is made here, of a class of the file or by a library of models."""
        made = [
            assign for assign in self.module.assigns if assign.target.rpartition(".")[2] == last and assign.how == "="
        ]
        return any(
            (assign.value.kind == "module" and (assign.value.of or assign.value.evaluated))
            or _MADE_ELSEWHERE.search(text_of(assign.expression, 200))
            for assign in made
        )

    def _is_inside(self, last: str) -> bool:
        """Return whether a model is a part of one that is trained, or made of one."""
        for assign in self.module.assigns:
            name = assign.target.rpartition(".")[2]
            if name == last and set(_parts(self.module, assign.expression)) & self.names:
                return True
            if name in self.names and last in _parts(self.module, assign.expression):
                return True
        return False

    def _is_trained(self, node: ast.expr, function: SourceFunction | None, depth: int = 0) -> bool:
        """Return whether an expression comes from what is trained, as far as that can be followed."""
        return depth > _DEPTH or any(self._holds(part, function, depth) for part in ast.walk(node))

    def _holds(self, part: ast.AST, function: SourceFunction | None, depth: int) -> bool:
        if isinstance(part, ast.Attribute):
            return self.module.value(part).of == "parameter"
        if isinstance(part, ast.Name):
            return self.module.value(part).grad and self._comes_trained(part.id, function, depth)
        call = self.module.calls_by_node.get(part)
        if call is None or not call.value.grad:
            return False
        if call.receiver.kind == "module":
            return self._has_weights(call) and not self._is_outside(call)
        return any(
            self._is_trained(returned.value, callee, depth + 1)
            for callee in call.callees
            for returned, _ in callee.returns
            if returned.value is not None
        )

    def _comes_trained(self, name: str, function: SourceFunction | None, depth: int) -> bool:
        made = [item for item in self.module.made_in(function, name) if name not in names_in(item)]
        if made:
            return any(self._is_trained(item, function, depth + 1) for item in made)
        passed = list(self.module.passed(function, name))
        return not passed or any(self._is_trained(item, scope.function, depth + 1) for item, scope in passed)


def trained_modules(module: Module) -> Trained | None:
    """Return what the optimizers of a program have, None where that is not known."""
    if _GRADIENT_WANTED.search(module.text):
        return None
    names: set[str] = set()
    parts: dict[str, set[str]] = defaultdict(set)
    roots: dict[str, set[str]] = defaultdict(set)
    around: set[str] = set()
    whole: set[str] = set()
    for call in module.calls:
        if call.value.kind != "optimizer" or call.callees:
            continue
        given = argument(call.node, "params", 0)
        owners = list(_owners(module, given, call.context.function)) if given is not None else []
        if not owners:
            return None
        for owner, function in owners:
            path = path_of(owner)
            if not path or path == "self":
                return None
            root, _, last = path.rpartition(".")
            names.add(last)
            whole.add(module.value(owner).of)
            if not root:
                continue
            around.add(root.rpartition(".")[2])
            value = module.value(owner.value) if isinstance(owner, ast.Attribute) else None
            own = function.owner.name if root == "self" and function is not None and function.owner is not None else ""
            of = own or (value.of if value is not None else "")
            if of in module.classes:
                parts[of].add(last)
            else:
                roots[root.rpartition(".")[2]].add(last)
    if not names:
        return None
    partly = {of: attributes for of, attributes in parts.items() if of not in whole}
    # several parts of a model from elsewhere may be all of it
    single = {root for root, attributes in roots.items() if len(attributes) == 1} - names - {"self"}
    return Trained(module, frozenset(names), partly, frozenset(single), frozenset(around - {"self"}))


def _owners(
    module: Module, node: ast.AST, function: SourceFunction | None, depth: int = 0
) -> Iterator[tuple[ast.expr, SourceFunction | None]]:
    """Yield the models whose parameters an expression holds, and the function that names them so."""
    if depth > _DEPTH:
        return
    for part in ast.walk(node):
        if isinstance(part, ast.Call) and isinstance(part.func, ast.Attribute) and "parameters" in part.func.attr:
            owner = _chosen(module, node, part) or part.func.value
            passed = [(given, scope.function) for given, scope in module.passed(function, path_of(owner))]
            yield from passed or [(owner, function)]
        elif isinstance(part, ast.Name):
            made = [assign for assign in module.assigns_to(part.id) if assign.context.function is function]
            for assign in made:
                gathered = (
                    assign.context.loop.node if assign.how == "append" and assign.context.loop is not None else None
                )
                source = gathered if isinstance(gathered, ast.For) else assign.expression
                yield from _owners(module, source, function, depth + 1)
            if not made:
                for given, scope in module.passed(function, part.id):
                    yield from _owners(module, given, scope.function, depth + 1)


def _chosen(module: Module, around: ast.AST, call: ast.Call) -> ast.Attribute | None:
    """Return the part that names are asked for: ``model.head`` of ``if "head" in name`` over named parameters."""
    assert isinstance(call.func, ast.Attribute)
    known = module.classes.get(module.value(call.func.value).of)
    if call.func.attr != "named_parameters" or known is None:
        return None
    if any(isinstance(node, ast.If) and node.orelse for node in ast.walk(around)):
        return None  # two groups, and each parameter is in one of them
    for node in ast.walk(around):
        said: object = ...
        if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.In):
            said = literal(node.left)
        elif isinstance(node, ast.Call) and method_of(node) == "startswith":
            said = literal(node.args[0] if node.args else None)
        if isinstance(said, str) and said.partition(".")[0] in known.attributes:
            return ast.Attribute(call.func.value, said.partition(".")[0], ast.Load())
    return None


def _parts(module: Module, node: ast.expr) -> Iterator[str]:
    """Yield the names of what something is made of; layers are made of numbers, ``encoder.width`` is one."""
    if isinstance(node, ast.Call):
        name = module.name_of(node.func)
        last = name.rpartition(".")[2]
        if name.startswith("torch.nn.") and last not in ("Sequential", "ModuleList", "ModuleDict", "DataParallel"):
            return
    if isinstance(node, ast.Attribute) and _SIZE.search(node.attr):
        return
    if isinstance(node, ast.Name):
        yield node.id
    elif isinstance(node, ast.Attribute):
        yield node.attr
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.expr):
            yield from _parts(module, child)
        elif isinstance(child, ast.keyword):
            yield from _parts(module, child.value)
