"""A compiled function gets arguments for which it must compile again.

Looks like: the loop's counter, or a number computed from it, passed to a compiled function; a number that compiled code
    counts on ``self``; ``dynamic=False`` where sizes change from turn to turn.
Slow because: Python numbers and sizes become part of the compiled code; a new value compiles again, for seconds, and
    after eight times the function runs without compilation.
Fix: pass a tensor instead of the number.
Quiet when: the argument, or the counter, is a tensor.
Source: PyTorch documentation, "torch.compile: recompilation".
"""

import ast
import re
from collections.abc import Iterator

from torchtriage.diagnose.lint.base import Fix, Hit, Module, Rule, SourceCall, compiled, text_of
from torchtriage.diagnose.lint.rules._turns import counted_by
from torchtriage.diagnose.lint.syntax import arguments, given_names, keyword, literal, names_in, path_of

RULE = Rule("CMP031", "compile-recompile", "compile", "Compiled code is recompiled again and again", "medium")

FIX = Fix(
    text="Pass changing values as tensors.",
    code="""torch._dynamo.mark_dynamic(x, 0)         # this dimension varies: one graph for all
step = torch.tensor(step, device=device)  # not a Python number that changes
# TORCH_LOGS=recompiles python train.py    # prints what changed""",
    link="https://docs.pytorch.org/docs/stable/torch.compiler_faq.html",
)

_SIZE = re.compile(r"^(h|w|n|t|l|b|bs|hw|side|res|scale)$|height|width|size|len|shape|resol|batch|frames|points|tokens")


def find(module: Module) -> Iterator[Hit]:
    """Yield calls of compiled functions whose arguments change kind."""
    if "compile" not in module.text:
        return
    yield from _counting(module)
    yield from _fixed_sizes(module)
    for call in module.calls:
        if not _is_compiled(module, call) or call.context.rare:
            continue
        given = arguments(call.node)
        counters = {
            name
            for loop in call.context.loops()
            if not loop.comprehension and (loop.n_constant is None or loop.n_constant > 2)
            for name in counted_by(loop)
        }
        counters |= {
            assign.target
            for assign in module.assigns
            if assign.context.loop is call.context.loop and assign.how == "=" and _counts(assign.expression, counters)
        }
        for item in given:
            if _counts(item, counters):
                yield Hit(call.node, f"{text_of(item)!r} is a different number in every call: each call recompiles")
                break


def _counting(module: Module) -> Iterator[Hit]:
    """Yield numbers of a module that its compiled code changes: each value is a graph of its own."""
    for assign in module.assigns:
        function = assign.context.function
        if function is None or function.owner is None or not compiled(assign.context) or assign.context.rare:
            continue
        if not assign.target.startswith("self."):
            continue
        grows = assign.how == "+=" or assign.target in {
            text_of(node) for node in ast.walk(assign.expression) if isinstance(node, ast.Attribute)
        }
        if not grows or assign.value.kind not in ("host", "unknown"):
            continue
        begun = [
            other.expression
            for other in module.assigns_to(assign.target)
            if other.context.function is not None
            and other.context.function.name == "__init__"
            and other.context.function.owner is function.owner
        ]
        if any(isinstance(node, ast.Constant) and isinstance(node.value, int | float) for node in begun):
            yield Hit(assign.node, f"{assign.target} is a different number in every call: each call recompiles")


def _fixed_sizes(module: Module) -> Iterator[Hit]:
    """Yield compilations for fixed sizes of what a loop calls with other sizes in each turn."""
    for made in module.called("torch.compile"):
        if literal(keyword(made.node, "dynamic")) is not False or not made.target:
            continue
        for call in module.calls:
            loop = call.context.statement_loop
            if loop is None or module.name_of(call.node.func) != made.target:
                continue
            names = given_names(call.node)
            if any(
                isinstance(node, ast.Assign)
                and any(names & names_in(target) for target in node.targets)
                and _sized(node.value, loop.targets)
                for node in ast.walk(loop.node)
            ):
                yield Hit(made.node, "dynamic=False, but sizes change between iterations: each size recompiles")
                break


def _sized(node: ast.expr, targets: frozenset[str]) -> bool:
    """Return whether a call makes something whose size the loop's own numbers say."""
    return isinstance(node, ast.Call) and any(
        isinstance(item, ast.Name) and item.id in targets and _SIZE.search(item.id) for item in node.args
    )


def _counts(node: ast.expr, counters: set[str]) -> bool:
    """Return whether an argument is a loop's counter, or arithmetic on it with numbers."""
    if isinstance(node, ast.Name):
        return node.id in counters
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub | ast.Mult | ast.Div):
        sides = (node.left, node.right)
        return any(_counts(side, counters) for side in sides) and all(
            isinstance(side, ast.Constant) or _counts(side, counters) for side in sides
        )
    return False


def _is_compiled(module: Module, call: SourceCall) -> bool:
    name = path_of(call.node.func)
    return call.receiver.compiled or any(
        function.compiled and function.name == name and function.owner is None for function in module.functions
    )
