"""Expressions of one sample, written for the whole batch."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from torchtriage.diagnose.lint.syntax import arguments, literal, names_in, whole_number
from torchtriage.diagnose.lint.torch_names import words
from torchtriage.measure.fix.edits._flow import Flow
from torchtriage.measure.fix.proposal import Site
from torchtriage.measure.fix.statements import source

ELEMENTWISE = words("""
    relu sigmoid tanh float half double to cpu cuda detach abs exp log sqrt clamp clamp_min clamp_max long int gelu silu
    neg numpy contiguous softplus leaky_relu log1p sign round
""")
ALONG = words("softmax log_softmax argmax argmin sum mean amax amin std var norm normalize cumsum")


class NotBatchedError(Exception):
    """An expression of one sample that is not known to be the same for a batch."""


@dataclass
class Batch:
    """``text`` : the expression of the batch; ``single`` : whether each sample has a dimension of one before it."""

    text: str
    single: bool


@dataclass
class Lift:
    """How to write an expression of one sample for all: ``sample`` : its variable, or ``index`` of it in ``whole``."""

    site: Site
    flow: Flow
    whole: str
    sample: str = ""
    index: str = ""

    def lift(self, node: ast.expr) -> Batch:
        """Return an expression for the batch; raises ``NotBatchedError``."""
        if self.sample and isinstance(node, ast.Name) and node.id == self.sample:
            return Batch(self.whole, False)
        if isinstance(node, ast.Subscript):
            return self._subscript(node)
        if isinstance(node, ast.BinOp):
            sides = [item for item in (node.left, node.right) if self._varies(item)]
            if len(sides) == 1:
                inner = self.lift(sides[0])
                left, right = (
                    inner.text if item is sides[0] else self._source(item) for item in (node.left, node.right)
                )
                operator = ast.unparse(ast.BinOp(ast.Name("a"), node.op, ast.Name("b")))[2:-2]
                return Batch(f"{_wrapped(left)} {operator} {_wrapped(right)}", inner.single)
        if isinstance(node, ast.Call):
            return self._call(node)
        if isinstance(node, ast.Attribute) and node.attr in ("logits", "last_hidden_state", "sample"):
            inner = self.lift(node.value)
            return Batch(f"{inner.text}.{node.attr}", inner.single)
        raise NotBatchedError

    def _varies(self, node: ast.AST) -> bool:
        return bool({self.sample, self.index} & names_in(node))

    def _source(self, node: ast.AST) -> str:
        return source(self.site.module, node)

    def _subscript(self, node: ast.Subscript) -> Batch:
        if self.index and self._source(node.value) == self.whole:
            place = node.slice
            if isinstance(place, ast.Name) and place.id == self.index:
                return Batch(self.whole, False)
            if isinstance(place, ast.Slice) and self._source(place).replace(" ", "") == f"{self.index}:{self.index}+1":
                return Batch(self.whole, True)
            raise NotBatchedError
        inner = self.lift(node.value)
        if literal(node.slice) is None and not inner.single:
            return Batch(inner.text, True)
        if literal(node.slice) == 0 and inner.single:
            return Batch(inner.text, False)
        raise NotBatchedError

    def _call(self, node: ast.Call) -> Batch:
        func = node.func
        if isinstance(func, ast.Attribute) and self._varies(func.value):
            inner, name = self.lift(func.value), func.attr
            first = literal(node.args[0]) if node.args else ...
            if name in ("unsqueeze", "squeeze") and first == 0 and inner.single == (name == "squeeze"):
                return Batch(inner.text, not inner.single)
            if any(map(self._varies, arguments(node))):
                raise NotBatchedError
            rest = [self._source(item) for item in (*node.args, *node.keywords)]
            if name in ELEMENTWISE:
                return Batch(f"{inner.text}.{name}({', '.join(rest)})", inner.single)
            if name in ALONG and len(node.args) + len(node.keywords) == 1:
                axis = self._axis(node.args[0] if node.args else node.keywords[0].value, inner)
                axis = axis if node.args else f"{node.keywords[0].arg}={axis}"
                return Batch(f"{inner.text}.{name}({axis})", inner.single)
            raise NotBatchedError
        known = self.flow.call(node)
        varying = [item for item in arguments(node) if self._varies(item)]
        if len(varying) != 1 or self._varies(func):
            raise NotBatchedError
        inner = self.lift(varying[0])
        name = self.site.module.name_of(func)
        last = name.rpartition(".")[2]
        is_model = known is not None and (known.receiver.kind == "module" or "model" in name or "net" in name)
        given: list[ast.expr | ast.keyword] = [*node.args, *node.keywords]
        axis_given = [item for item in node.keywords if item.arg == "dim"]
        rest = [
            f"{item.arg}={self._axis(item.value, inner)}"
            if item in axis_given
            else self._argument(item, varying[0], inner)
            for item in given
        ]
        text = f"{self._source(func)}({', '.join(rest)})"
        if is_model and inner.single:
            return Batch(text, True)
        if name.startswith("torch.") and (last in ELEMENTWISE or (last in ALONG and axis_given)):
            return Batch(text, inner.single)
        raise NotBatchedError

    def _argument(self, item: ast.expr | ast.keyword, varying: ast.expr, inner: Batch) -> str:
        if item is varying:
            return inner.text
        if isinstance(item, ast.keyword) and item.value is varying:
            return f"{item.arg}={inner.text}"
        return self._source(item) if not isinstance(item, ast.keyword) else f"{item.arg}={self._source(item.value)}"

    def _axis(self, node: ast.expr, inner: Batch) -> str:
        """Return an axis of one sample as that of the batch."""
        number = whole_number(node)
        if number is None:
            raise NotBatchedError
        if number < 0:
            return str(number)
        if inner.single:
            if number == 0:
                raise NotBatchedError
            return str(number)
        return str(number + 1)


def _wrapped(text: str) -> str:
    return f"({text})" if " " in text and not text.endswith(")") else text
