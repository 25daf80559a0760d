"""A loop computes slice by slice what one call computes for all.

Looks like: ``for tag in range(n_tags): out.append(torch.logsumexp(alpha + trans[:, tag], 0))``, stacked; a
    loss that goes through the sentences of a padded batch, ``scores[b, :n]``; ``mask[i, :n] = 1`` for each length;
    ``loss += dice(p[:, c], t[:, c])`` for each class; gradients taken one output at a time.
Slow because: each turn launches kernels of its own for a small part, forward and backward.
Fix: broadcast over the dimension (``torch.logsumexp(alpha[:, None] + trans, 0)``), compare positions with lengths
    (``torch.arange(t) < n[:, None]``), reduce over ``dim``, or ``torch.vmap``.
Quiet when: a value is carried from turn to turn, each slice goes through its own module, or the turns are few.
Source: PyTorch documentation, "Broadcasting semantics" and ``torch.vmap``.
"""

import ast
import re
from collections.abc import Iterable, Iterator

from torchtriage.diagnose.lint.base import Context, Fix, Hit, Module, Rule, SourceLoop, names_in, text_of
from torchtriage.diagnose.lint.rules._turns import carries
from torchtriage.diagnose.lint.syntax import indices

RULE = Rule("LCH109", "loop-of-slices", "launch", "A loop computes slice by slice", "low", over=("LCH102",))

FIX = Fix(
    text="Compute all slices at once.",
    code="""alpha = torch.logsumexp(alpha[:, :, None] + trans, dim=1) + feat    # all tags
mask = torch.arange(n, device=lengths.device) < lengths[:, None]    # all rows""",
    link="https://docs.pytorch.org/docs/stable/notes/broadcasting.html",
)

_FEW = 5
_JOINS = frozenset(["stack", "cat", "concat", "vstack", "hstack", "sum", "mean", "pad_sequence", "tensor"])
_FEW_BY_NAME = re.compile(
    r"layer|lvl|ax[ei]s|block|level|stage|scale|branch|modal|head|codebook|quantiz|expert|epoch|step|iter|depth|dim|view"
    r"|order|plane|group|chunk|image|camera|choice",
    re.IGNORECASE,
)


def find(module: Module) -> Iterator[Hit]:
    """Yield loops whose turns each compute with one slice of a tensor, and need none of the others."""
    for loop in module.loops:
        if isinstance(loop.node, ast.While) or not loop.targets or not _may_repeat(module, loop.context):
            continue
        if loop.turns_below(_FEW) or loop.trains or loop.over_loader or loop.times:
            continue
        counters = _counters(loop)
        if not counters or _FEW_BY_NAME.search(text_of(loop.node.iter)) or any(map(_FEW_BY_NAME.search, counters)):
            continue
        turn = [] if isinstance(loop.node, ast.comprehension) and loop.node.ifs else module.nodes(loop)
        if _differentiates(module, turn, counters):
            yield Hit(loop.place, "gradients are taken for one output at a time", "grad")
            continue
        if not loop.comprehension and carries(loop):
            continue
        slices = [item for item in _slices(turn, counters) if _is_tensor(module, item)]
        if not slices or _picks_modules(module, turn, counters) or _picks_settings(module, turn, counters):
            continue
        if _is_gathered(module, loop, turn, slices, counters) and not _saves_memory(module, loop):
            yield Hit(loop.place, f"each iteration computes one slice: {text_of(slices[0])}", "stack")


def _saves_memory(module: Module, loop: SourceLoop) -> bool:
    """Return whether a switch chooses the loop because it needs less memory."""
    node = module.around(loop.node, ast.If)
    return node is not None and "memory" in text_of(node.test)


def _may_repeat(module: Module, context: Context) -> bool:
    """Return whether a loop runs again and again, as far as its file can say."""
    function = context.function
    if context.seldom or (function is not None and (function.sets_up or function.loads)):
        return False
    if context.often:
        return True
    if function is None:
        return False
    if module.alone and not function.called_in_loop and not any(callee is function for _, callee in module.edges):
        # a loss, a mask, a metric for others to call
        return function.owner is None or function.in_module
    if not module.is_program:
        return False
    return function.called_again or function.called_hot or function.in_module


def _counters(loop: SourceLoop) -> set[str]:
    """Return the names that count the turns: of ``range(n)``, and the first of ``enumerate(x)``."""
    assert not isinstance(loop.node, ast.While)
    node, target = loop.node.iter, loop.node.target
    name = text_of(node.func).rpartition(".")[2] if isinstance(node, ast.Call) else ""
    if name in ("range", "trange") and isinstance(target, ast.Name):
        assert isinstance(node, ast.Call)
        return {target.id} if len(node.args) < 3 else set()
    if name == "enumerate" and isinstance(target, ast.Tuple) and isinstance(target.elts[0], ast.Name):
        return {target.elts[0].id}
    if loop.iterates.kind == "tensor" and isinstance(target, ast.Tuple) and _EDGES.search(text_of(node)):
        return names_in(target)
    return set()


_EDGES = re.compile(r"edge|pairs|bonds|links", re.IGNORECASE)


def _slices(nodes: Iterable[ast.AST], counters: set[str]) -> list[ast.Subscript]:
    """Return what is read at the counter's place: ``x[i]``, ``x[:, i]``, ``x[i, :n]``."""
    return [
        node
        for node in nodes
        if isinstance(node, ast.Subscript)
        and any(isinstance(index, ast.Name) and index.id in counters for index in indices(node))
    ]


def _is_tensor(module: Module, node: ast.Subscript) -> bool:
    """Return whether what is sliced is a tensor, by what is known of it or by an index in several dimensions."""
    kind = module.value(node.value).kind
    return kind == "tensor" or (kind == "unknown" and len(indices(node)) > 1)


def _picks_modules(module: Module, turn: list[ast.AST], counters: set[str]) -> bool:
    """Return whether the counter picks a layer, or anything else that is called."""
    for node in turn:
        if isinstance(node, ast.Call):
            called = node.func
            while isinstance(called, ast.Attribute) and module.value(called).kind != "tensor":
                called = called.value
            own = called is node.func or module.value(called).kind in ("module", "object")
            if isinstance(called, ast.Subscript) and names_in(called.slice) & counters and own:
                return True
        if isinstance(node, ast.Await | ast.Yield | ast.Break | ast.Return):
            return True
    return False


def _picks_settings(module: Module, turn: list[ast.AST], counters: set[str]) -> bool:
    """Return whether the counter picks a number or a name of its own for each turn: ``axes[i]``, ``getattr``."""
    for node in turn:
        named = isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Call) and text_of(node.func) == "getattr")
        if named and names_in(node) & counters:
            return True
    return any(
        len(indices(item)) == 1 and module.value(item.value).kind in ("list", "unknown", "host", "module", "object")
        for item in _slices(turn, counters)
        if isinstance(item.value, ast.Attribute) or module.value(item.value).kind in ("list", "host", "module")
    )


def _differentiates(module: Module, turn: list[ast.AST], counters: set[str]) -> bool:
    """Return whether a turn takes the gradient of one output: ``grad(y[i], x, retain_graph=True)``."""
    return "grad(" in module.text and any(
        isinstance(node, ast.Call)
        and module.name_of(node.func) == "torch.autograd.grad"
        and any(_slices(ast.walk(item), counters) for item in node.args[:1])
        for node in turn
    )


def _is_gathered(
    module: Module, loop: SourceLoop, turn: list[ast.AST], slices: list[ast.Subscript], counters: set[str]
) -> bool:
    """Return whether what turns compute is put together: in a list that is stacked, a sum, the rows of a tensor."""
    ragged = any(map(_is_cut, slices))
    if isinstance(loop.node, ast.comprehension):
        element = module.elements.get(loop.node)
        listed = module.parents.get(element) if element is not None else None
        if element is None or listed is None:
            return False
        return _joins(module.parents.get(listed), ragged=ragged) and _computes(module, element, slices)
    body = module.body(loop.function)
    for node in turn:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "append":
            name = text_of(node.func.value)
            if not node.args or not _computes(module, node.args[0], slices, loop):
                continue
            if ragged and _joins(node.args[0]) and not _joins(node.args[0], ragged=True):
                continue
            uses = module.reads(name, body)
            if any(_joins(module.parents.get(use), ragged=ragged) for use in uses):
                return True
        elif isinstance(node, ast.AugAssign | ast.Assign):
            target = node.target if isinstance(node, ast.AugAssign) else node.targets[0]
            row = isinstance(target, ast.Subscript) and target in slices
            if isinstance(target, ast.Subscript) and row and module.value(target.value).kind == "tensor":
                apart = not names_in(target.value) & names_in(node.value)
                if apart and _is_array_work(module, node, target, counters):
                    return True
            elif (
                isinstance(node, ast.AugAssign)
                and isinstance(target, ast.Name | ast.Subscript)
                and not names_in(target) & names_in(node.value) & set(loop.assigned)
                and _computes(module, node.value, slices, loop)
                and module.value(node.value).kind in ("tensor", "unknown")
                and isinstance(node.value, ast.Call | ast.BinOp | ast.UnaryOp)
            ):
                return True
    return False


def _is_array_work(module: Module, node: ast.Assign | ast.AugAssign, target: ast.Subscript, counters: set[str]) -> bool:
    """Return whether a row is written with a constant up to its length, or with what is computed of another's row."""
    cut = _is_cut(target)
    if cut or isinstance(node.value, ast.Constant):
        return cut and isinstance(node.value, ast.Constant)
    return any(
        module.value(item.value).kind == "tensor" for item in _slices(ast.walk(node.value), counters)
    ) and not isinstance(node.value, ast.Subscript)


def _is_cut(node: ast.Subscript) -> bool:
    """Return whether a row is taken up to a length: ``x[i, :n]``."""
    return any(isinstance(index, ast.Slice) and (index.lower or index.upper) for index in indices(node))


def _joins(node: ast.AST | None, *, ragged: bool = False) -> bool:
    """Return whether results are put together; what differs in length is only stacked once it is reduced."""
    name = text_of(node.func).rpartition(".")[2] if isinstance(node, ast.Call) else ""
    return name in _JOINS and not (ragged and name in _CONCATENATES)


_CONCATENATES = frozenset(["cat", "concat", "vstack", "hstack", "pad_sequence"])


def _computes(module: Module, node: ast.expr, slices: list[ast.Subscript], loop: SourceLoop | None = None) -> bool:
    """Return whether an expression is computed of a slice, itself or by a variable of the same turn."""
    names = {
        assign.target
        for assign in module.assigns
        if loop is not None
        and assign.context.loop is loop
        and any(part in slices for part in ast.walk(assign.expression))
    }
    for _ in range(2):
        names |= {
            assign.target
            for assign in module.assigns
            if loop is not None and assign.context.loop is loop and names_in(assign.expression) & names
        }
    used = any(part in slices for part in ast.walk(node)) or bool(names_in(node) & names)
    if isinstance(node, ast.Subscript):
        return (
            used
            and node in slices
            and len(indices(node)) > 1
            and not any(isinstance(index, ast.Slice) for index in indices(node))
        )
    return used and isinstance(node, ast.Call | ast.BinOp | ast.UnaryOp | ast.Name)
