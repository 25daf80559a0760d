"""Run a model on a whole batch instead of on each of its samples."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from torchtriage.diagnose.lint.edits import SourceEdit, replace_node
from torchtriage.diagnose.lint.syntax import arguments, literal, names_in, path_of, whole_number
from torchtriage.diagnose.lint.torch_names import words
from torchtriage.diagnose.lint.work_syntax import appended
from torchtriage.measure.fix.edits._flow import flow_of
from torchtriage.measure.fix.edits._turns import counted
from torchtriage.measure.fix.proposal import Proposal, Site, first_only
from torchtriage.measure.fix.statements import body_of, complete, remove, source

CODES = words("LCH102 LCH107 LCH017 LCH014 LCH109 HST020 HST114 KRN024 LCH105")
ELEMENTWISE = words("""
    relu sigmoid tanh float half double to cpu cuda detach abs exp log sqrt clamp clamp_min clamp_max long int gelu silu
    neg numpy contiguous softplus leaky_relu log1p sign round
""")
ALONG = words("softmax log_softmax argmax argmin sum mean amax amin std var norm normalize cumsum")


@first_only
def propose(site: Site) -> Iterator[Proposal]:
    """Yield the comprehension, or the loop that appends, that is joined right away, as one call."""
    if site.statement is None:
        return
    for node in ast.walk(site.statement):
        if isinstance(node, ast.ListComp) and len(node.generators) == 1 and not node.generators[0].ifs:
            over, join = node.generators[0], site.module.parents.get(node)
            edit = _joined(site, over.target, over.iter, node.elt, join)
            yield Proposal(complete((edit,)), "run the model on all samples at once")
    for loop in site.for_loops:
        yield Proposal(_loop(site, loop), f"run all iterations of the loop on line {loop.lineno} at once")


def _loop(site: Site, loop: ast.For) -> tuple[SourceEdit, ...]:
    """Return the edits of ``outs = []``, ``for ...: outs.append(f(x))``, and ``torch.cat(outs)`` below."""
    module = site.module
    if len(loop.body) != 1 or not isinstance(loop.body[0], ast.Expr):
        return ()
    call, added = loop.body[0].value, appended(loop.body[0].value)
    if added is None or not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
        return ()
    name, scope = path_of(call.func.value), module.scope(loop)
    stores = module.stores(name, scope)
    reads = [node for node in module.reads(name, scope) if node not in ast.walk(loop)]
    if call.func.attr != "append" or len(reads) != 1 or len(stores) != 1:
        return ()
    made = module.parents[stores[0]]
    if not isinstance(made, ast.Assign) or made not in (body_of(module, loop) or []):
        return ()
    joined = _joined(site, loop.target, loop.iter, added, module.parents[reads[0]])
    return complete([remove(module, made), remove(module, loop), joined])


def _joined(site: Site, target: ast.expr, over: ast.expr, element: ast.expr, join: ast.AST | None) -> SourceEdit | None:
    """Return the edit that puts one call for the batch in the place of a join of the elements of all samples."""
    name = site.module.name_called(join)
    if not isinstance(join, ast.Call) or name not in ("torch.cat", "torch.stack"):
        return None
    lift = _lifting(site, target, over)
    if lift is None or any(literal(item) != 0 for item in arguments(join)[1:]):
        return None
    try:
        batch = lift.lift(element)
    except _NotBatchedError:
        return None
    works = "(" in batch.text.replace("torch.stack(", "")
    if not works or (name == "torch.cat" and not batch.single):
        return None
    return replace_node(join, f"{batch.text}.unsqueeze(1)" if name == "torch.stack" and batch.single else batch.text)


def _lifting(site: Site, target: ast.expr, over: ast.expr) -> _Lift | None:
    if not isinstance(target, ast.Name):
        return None
    if whole := counted(site.module, over):
        return _Lift(site, whole, index=target.id)
    if path_of(over):
        kind = site.module.value(over).kind
        whole = source(site.module, over)
        return _Lift(site, f"torch.stack({whole})" if kind == "list" else whole, sample=target.id)
    return None


class _NotBatchedError(Exception):
    """An expression of one sample that is not known to be the same for a batch."""


@dataclass
class _Batch:
    """``text`` : the expression of the batch; ``single`` : whether each sample has a dimension of one before it."""

    text: str
    single: bool


@dataclass
class _Lift:
    """How to write an expression of one sample for all: ``sample`` : its variable, or ``index`` of it in ``whole``."""

    site: Site
    whole: str
    sample: str = ""
    index: str = ""

    def lift(self, node: ast.expr) -> _Batch:
        """Return an expression for the batch; raises ``_NotBatchedError``."""
        if self.sample and isinstance(node, ast.Name) and node.id == self.sample:
            return _Batch(self.whole, False)
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
                return _Batch(f"{_wrapped(left)} {operator} {_wrapped(right)}", inner.single)
        if isinstance(node, ast.Call):
            return self._call(node)
        if isinstance(node, ast.Attribute) and node.attr in ("logits", "last_hidden_state", "sample"):
            inner = self.lift(node.value)
            return _Batch(f"{inner.text}.{node.attr}", inner.single)
        raise _NotBatchedError

    def _varies(self, node: ast.AST) -> bool:
        return bool({self.sample, self.index} & names_in(node))

    def _source(self, node: ast.AST) -> str:
        return source(self.site.module, node)

    def _subscript(self, node: ast.Subscript) -> _Batch:
        if self.index and self._source(node.value) == self.whole:
            place = node.slice
            if isinstance(place, ast.Name) and place.id == self.index:
                return _Batch(self.whole, False)
            if isinstance(place, ast.Slice) and self._source(place).replace(" ", "") == f"{self.index}:{self.index}+1":
                return _Batch(self.whole, True)
            raise _NotBatchedError
        inner = self.lift(node.value)
        if literal(node.slice) is None and not inner.single:
            return _Batch(inner.text, True)
        if literal(node.slice) == 0 and inner.single:
            return _Batch(inner.text, False)
        raise _NotBatchedError

    def _call(self, node: ast.Call) -> _Batch:
        func = node.func
        if isinstance(func, ast.Attribute) and self._varies(func.value):
            inner, name = self.lift(func.value), func.attr
            first = literal(node.args[0]) if node.args else ...
            if name in ("unsqueeze", "squeeze") and first == 0 and inner.single == (name == "squeeze"):
                return _Batch(inner.text, not inner.single)
            if any(map(self._varies, arguments(node))):
                raise _NotBatchedError
            rest = [self._source(item) for item in (*node.args, *node.keywords)]
            if name in ELEMENTWISE:
                return _Batch(f"{inner.text}.{name}({', '.join(rest)})", inner.single)
            if name in ALONG and len(node.args) + len(node.keywords) == 1:
                axis = self._axis(node.args[0] if node.args else node.keywords[0].value, inner)
                axis = axis if node.args else f"{node.keywords[0].arg}={axis}"
                return _Batch(f"{inner.text}.{name}({axis})", inner.single)
            raise _NotBatchedError
        known = flow_of(self.site.module).call(node)
        varying = [item for item in arguments(node) if self._varies(item)]
        if len(varying) != 1 or self._varies(func):
            raise _NotBatchedError
        inner = self.lift(varying[0])
        name = self.site.module.name_of(func)
        last = name.rpartition(".")[2]
        is_model = known is not None and (known.receiver.kind == "module" or "model" in name or "net" in name)
        given: list[ast.expr | ast.keyword] = [*node.args, *node.keywords]
        axis_given = [item for item in node.keywords if item.arg == "dim"]
        rest = [self._argument(item, varying[0], inner) for item in given]
        text = f"{self._source(func)}({', '.join(rest)})"
        if is_model and inner.single:
            return _Batch(text, True)
        if name.startswith("torch.") and (last in ELEMENTWISE or (last in ALONG and axis_given)):
            return _Batch(text, inner.single)
        raise _NotBatchedError

    def _argument(self, item: ast.expr | ast.keyword, varying: ast.expr, inner: _Batch) -> str:
        if isinstance(item, ast.expr):
            return inner.text if item is varying else self._source(item)
        if item.arg == "dim":
            return f"dim={self._axis(item.value, inner)}"
        return f"{item.arg}={inner.text if item.value is varying else self._source(item.value)}"

    def _axis(self, node: ast.expr, inner: _Batch) -> str:
        """Return an axis of one sample as that of the batch."""
        number = whole_number(node)
        if number is None:
            raise _NotBatchedError
        if number < 0:
            return str(number)
        if inner.single:
            if number == 0:
                raise _NotBatchedError
            return str(number)
        return str(number + 1)


def _wrapped(text: str) -> str:
    return f"({text})" if " " in text and not text.endswith(")") else text
