"""Identical heads run one after another on the same input.

Looks like: ``torch.cat([head(x) for head in self.heads], dim=-1)`` with ``nn.ModuleList([Head(d, d // n) for _ in
    range(n)])``, ``torch.stack([critic(x) for critic in self.critics])``.
Slow because: each head launches the same small kernels; one projection of the whole width, or one batched product,
    does all of them.
Fix: one layer for all heads and a reshape, ``nn.MultiheadAttention``, or ``torch.vmap`` over stacked weights.
Quiet when: the members differ in structure, or there are only two.
Source: PyTorch tutorial, "Model ensembling".
"""

import ast
from collections.abc import Iterator

from torchtriage.diagnose.lint.base import Fix, Hit, Module, Rule, SourceCall, literal, names_in, text_of

RULE = Rule("LCH110", "parallel-heads", "launch", "Identical heads run one after another", "low")

FIX = Fix(
    text="Compute all heads in one layer.",
    code="""self.qkv = nn.Linear(width, 3 * width)       # all heads
q, k, v = self.qkv(x).view(b, t, 3, n, d).permute(2, 0, 3, 1, 4)""",
    link="https://docs.pytorch.org/tutorials/intermediate/ensembling.html",
)

_JOINS = frozenset(["cat", "stack", "concat"])


def find(module: Module) -> Iterator[Hit]:
    """Yield loops over equal members of a list of modules that all take the same input."""
    if "ModuleList(" not in module.text:
        return
    for call in module.calls:
        loop = call.context.loop
        if loop is None or call.context.rare or not isinstance(call.node.func, ast.Name) or not call.node.args:
            continue
        if call.node.func.id not in loop.targets or call.receiver.kind != "module" or isinstance(loop.node, ast.While):
            continue
        if len(loop.targets) != 1 or names_in(call.node) & (
            (loop.targets | loop.assigned.keys()) - {call.node.func.id}
        ):
            continue
        if _joined(module, call) and _are_equal(module, loop.node.iter):
            yield Hit(call.node, f"each head runs separately: {text_of(call.node)}", "forward")


def _joined(module: Module, call: SourceCall) -> bool:
    """Return whether the results are put side by side."""
    listed = module.parents.get(call.node)
    if isinstance(listed, ast.Call) and isinstance(listed.func, ast.Attribute) and listed.func.attr == "append":
        name = text_of(listed.func.value)
        return any(_joins(module.parents.get(use)) for use in module.names(name, module.scope(call.node)))
    return isinstance(listed, ast.ListComp | ast.GeneratorExp) and _joins(module.parents.get(listed))


def _joins(node: ast.AST | None) -> bool:
    return isinstance(node, ast.Call) and text_of(node.func).rpartition(".")[2] in _JOINS


def _are_equal(module: Module, node: ast.expr) -> bool:
    """Return whether a list of modules is built of the same arguments for each, and more than twice."""
    for assign in module.assigns_to(text_of(node)):
        if not isinstance(assign.expression, ast.Call):
            continue
        given = assign.expression.args[0] if assign.expression.args else None
        if not isinstance(given, ast.ListComp | ast.GeneratorExp) or len(given.generators) != 1:
            return False
        turns = given.generators[0].iter
        few = isinstance(turns, ast.Call) and bool(turns.args) and literal(turns.args[-1]) in (1, 2)
        return not names_in(given.elt) & names_in(given.generators[0].target) and not few
    return False
