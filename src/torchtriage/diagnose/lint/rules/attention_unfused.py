"""Attention is written out as two products with a softmax between them.

Looks like: ``(q @ k.transpose(-2, -1)).softmax(-1) @ v``, with ``matmul``, ``bmm`` or ``einsum``, over as many lines as
    it takes, with scale, mask and dropout in between; a ``MultiheadAttention`` that returns weights which nothing uses
    (``out, _ = self.attn(x, x, x)``).
Slow because: the scores of every pair of tokens are written to memory and read again by each of
    these operators, and kept for the backward pass.
Fix: ``torch.nn.functional.scaled_dot_product_attention``; ``need_weights=False``.
Quiet when: the file can run the fused operator as well, the weights leave the function, or the
    attention is sparse.
Source: PyTorch tutorial, "Implementing high-performance transformers with scaled dot product
    attention".
"""

import ast
import re
from collections.abc import Iterator

from torchtriage.diagnose.lint.base import Fix, Hit, Module, Rule, keyword, literal, text_of, unpacks
from torchtriage.diagnose.lint.syntax import is_self, path_of, root_of

RULE = Rule("KRN025", "attention-unfused", "kernel", "Attention written out as single operators", "medium")

FIX = Fix(
    text="Let one operator compute the attention.",
    code="""out = torch.nn.functional.scaled_dot_product_attention(
    q, k, v, attn_mask=mask, dropout_p=p if self.training else 0.0)""",
    link="https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.scaled_dot_product_attention.html",
)

_FUSED = re.compile(r"scaled_dot_product_attention|flash_attn|xformers|flex_attention|_FUNCTIONS")
_PRODUCT = re.compile(r"@|matmul|bmm|einsum")
_PRODUCTS = frozenset(["matmul", "bmm", "baddbmm", "einsum"])
_PASSED = re.compile(r"drop|mask|bias|where|clamp|scale", re.IGNORECASE)
_SOFTMAX = re.compile(r"^(softmax|attend|attn_softmax)$|_softmax$", re.IGNORECASE)
_NOTHING, _SCORES, _WEIGHTS = 0, 1, 2


def find(module: Module) -> Iterator[Hit]:
    """Yield the second product of each attention that is written out."""
    yield from _unused_weights(module)
    text = module.text
    if ("softmax" not in text and "Softmax" not in text) or _FUSED.search(text):
        return
    for function in module.functions:
        body = module.text_of(function)
        if "sparse" in function.qualname.lower():
            continue
        if _PRODUCT.search(body) and re.search("softmax|attend", body, re.IGNORECASE):
            hit = _Function(function.node).hit
            if hit is not None:
                yield Hit(hit, "attention is written out: scores make several passes through memory")


def _unused_weights(module: Module) -> Iterator[Hit]:
    """Yield calls of PyTorch's own attention that ask for weights, and leave them."""
    if "MultiheadAttention(" not in module.text:
        return
    for call in module.calls:
        function = call.context.function
        if call.receiver.of != "torch.nn.MultiheadAttention" or not call.context.hot or function is None:
            continue
        if keyword(call.node, "need_weights") is not None or len(call.node.args) >= _N_WEIGHTS or unpacks(call.node):
            continue
        if _takes_first(function.node, call.node):
            said = f"attention weights are computed but not used: {text_of(call.node)}"
            yield Hit(call.node, said, "forward", "low", fix=_NO_WEIGHTS)


_N_WEIGHTS = 5  # the place of need_weights among the positional arguments
_NO_WEIGHTS = Fix(
    text="Ask for no weights: then the fused operator is used.",
    code="out, _ = self.attn(x, x, x, need_weights=False)",
    link="https://docs.pytorch.org/docs/stable/generated/torch.nn.MultiheadAttention.html",
)


def _takes_first(body: ast.AST, call: ast.Call) -> bool:
    """Return whether only the first of two results is used: ``f(x)[0]``, ``out, _ = f(x)``."""
    nodes = list(ast.walk(body))
    for node in nodes:
        if isinstance(node, ast.Subscript) and node.value is call:
            return literal(node.slice) == 0
        if isinstance(node, ast.Assign) and node.value is call and isinstance(node.targets[0], ast.Tuple):
            second = node.targets[0].elts[-1]
            return isinstance(second, ast.Name) and not any(
                isinstance(item, ast.Name) and item.id == second.id and isinstance(item.ctx, ast.Load) for item in nodes
            )
    return False


class _Function:
    """How far each name of a function is on the way from scores to their use."""

    def __init__(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self.stage: dict[str, int] = {}
        self.hit: ast.expr | None = None
        self.leaves_function = False
        for statement in sorted(
            (item for item in ast.walk(node) if isinstance(item, ast.stmt)),
            key=lambda item: (item.lineno, item.col_offset),
        ):
            if isinstance(statement, ast.Assign):
                self._assign(statement)
            elif isinstance(statement, ast.AugAssign):
                self.of(statement.value)
            elif isinstance(statement, ast.Return) and statement.value is not None:
                self._leaves(statement.value)
            elif isinstance(statement, ast.Expr):
                self.of(statement.value)
        if self.leaves_function:
            self.hit = None

    def _assign(self, node: ast.Assign) -> None:
        stage = self.of(node.value)
        for target in node.targets:
            if isinstance(target, ast.Name):
                # "if not wanted: weights = None" does not unmake them
                if not isinstance(node.value, ast.Constant):
                    self.stage[target.id] = stage
            elif isinstance(target, ast.Attribute) and stage == _WEIGHTS:
                self.leaves_function = True

    def _leaves(self, node: ast.expr) -> None:
        parts = node.elts if isinstance(node, ast.Tuple | ast.List) else [node]
        stages = {self.of(part) for part in parts}  # all of them: each may hold the product
        self.leaves_function = self.leaves_function or max(stages, default=_NOTHING) > _NOTHING

    def of(self, node: ast.expr) -> int:
        """Return the stage of an expression, and note a product of the weights."""
        if isinstance(node, ast.Name):
            return self.stage.get(node.id, _NOTHING)
        if isinstance(node, ast.BinOp):
            if isinstance(node.op, ast.MatMult):
                return self._product(node, [node.left, node.right])
            return max(self.of(node.left), self.of(node.right))
        if isinstance(node, ast.IfExp):
            return max(self.of(node.body), self.of(node.orelse))
        if isinstance(node, ast.Subscript):
            return self.of(node.value)
        if isinstance(node, ast.Tuple | ast.List):
            self._leaves(node)
            return _NOTHING
        return self._call(node) if isinstance(node, ast.Call) else _NOTHING

    def _call(self, node: ast.Call) -> int:
        func = node.func
        name = func.attr if isinstance(func, ast.Attribute) else getattr(func, "id", "")
        owner = func.value if isinstance(func, ast.Attribute) else None
        given = [arg for arg in node.args if not isinstance(arg, ast.Constant)]
        if name in _PRODUCTS:
            if owner is not None and len(given) == 1 and path_of(owner) not in ("torch", "th", "F", "np", "jnp"):
                given = [owner, *given]
            return self._product(node, given[-2:])
        inner = self.of(owner) if owner is not None else _NOTHING
        stages = [self.of(item) for item in given]
        first = inner or max(stages, default=_NOTHING)
        if _SOFTMAX.search(name):
            return _WEIGHTS if first == _SCORES else _NOTHING
        if name in ("append", "update") and _WEIGHTS in stages:
            self.leaves_function = True
        # a tensor's own method hands it on; of other calls, those that mask and drop
        return first if inner or _PASSED.search(name) else _NOTHING

    def _product(self, node: ast.expr, operands: list[ast.expr]) -> int:
        stages = [self.of(operand) for operand in operands]
        if len(operands) == 1:
            return stages[0]  # einsum that only turns axes
        if _WEIGHTS in stages:
            self.hit = self.hit or node
            return _NOTHING
        # a parameter of the module, as it is or transposed
        own = any(is_self(root_of(operand)) for operand in operands)
        return _SCORES if len(operands) == 2 and not own else _NOTHING
