"""Everything is sorted, or put in random order, to take a few.

Looks like: ``x.sort().indices[:, :k]``, ``torch.argsort(x)[:k]``, ``torch.randperm(n)[:k]``,
    ``np.random.permutation(n)[:k]``, ``sorted(x)[:k]``, directly or through a variable that is used for nothing else,
    in each step; ``np.random.choice(n, k, replace=False)``, which permutes all; ``random.choice(list(table))``.
Slow because: sorting takes several passes over all elements; the largest few can be picked in one or
    two. A permutation draws and moves a number for each element.
Fix: ``x.topk(k)``; ``torch.kthvalue``, ``torch.quantile`` for one of them; ``torch.randint`` for a few
    at random.
Quiet when: the order of all is used; a permutation in a module's ``forward``, over the tokens of a sample.
Source: PyTorch documentation of ``torch.topk``.
"""

import ast
import re
from collections.abc import Iterator

from torchtriage.diagnose.lint.base import Fix, Hit, Module, Rule, SourceCall, keyword, literal, text_of
from torchtriage.diagnose.lint.syntax import indices

RULE = Rule("KRN101", "full-sort", "kernel", "A full sort where only the top few are needed", "low")

FIX = Fix(
    text="Select only those.",
    code="""nearest = distances.topk(k, dim=1, largest=False).indices   # not distances.sort(dim=1).indices[:, :k]
picked = torch.randint(len(rays), (k,))                     # not torch.randperm(len(rays))[:k]""",
    link="https://docs.pytorch.org/docs/stable/generated/torch.topk.html",
)

_SORTS = ("torch.sort", "torch.argsort")
_SHUFFLES = ("torch.randperm", "numpy.random.permutation")


def find(module: Module) -> Iterator[Hit]:
    """Yield sorts and permutations of hot code of which only the beginning is taken."""
    yield from _draws(module)
    calls = {
        call.node: call
        for call in [*module.sent("sort", "argsort"), *module.called(*_SORTS, *_SHUFFLES)]
        if _runs_often(module, call) and (call.receiver.kind == "tensor" or call.name) and not _needs_order(call)
    }
    calls |= {call.node: call for call in module.called("sorted") if _sorts_many(module, call)}
    calls |= {
        call.node: call
        for call in module.sent("permutation")
        if call.context.hot and len(call.node.args) == 1 and call.receiver.kind in ("unknown", "numpy")
    }
    if not calls:
        return
    for function in {call.context.function for call in calls.values()}:
        named = _named(module, [call for call in calls.values() if call.context.function is function])
        slices: dict[str, list[bool]] = {name: [] for name in named}
        inside: set[int] = set()
        for node in ast.walk(module.body(function)):
            if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
                inner = _root(node)
                if inner in calls and _takes_few(node):
                    yield _hit(calls[inner], text_of(node))
                elif isinstance(inner, ast.Name) and inner.id in named and _takes_few(node):
                    slices[inner.id].append(True)
                    inside.add(id(inner))
            elif isinstance(node, ast.Name) and node.id in named and isinstance(node.ctx, ast.Load):
                slices[node.id].append(id(node) in inside)
        for name, call in named.items():
            if slices[name] and all(slices[name]):
                yield _hit(call, f"{name} = {text_of(call.node)}")


def _draws(module: Module) -> Iterator[Hit]:
    """Yield draws that go through all there is: a permutation inside, or a list that is made for them."""
    if not module.is_program:
        return  # positions in a sequence, as many as who calls it has
    for call in module.called("numpy.random.choice"):
        if literal(keyword(call.node, "replace")) is False and keyword(call.node, "p") is None and call.node.args:
            number = module.constant(call.node.args[0], call.context)
            if call.context.hot and not (isinstance(number, int) and number <= _FEW):
                said = f"everything is shuffled, few elements are used: {text_of(call.node)}"
                yield Hit(call.node, said, call.attr, fix=_DRAW)
    for call in module.called("random.choice", "random.sample", "random.choices"):
        given = call.node.args[0] if call.node.args else None
        if call.context.hot and isinstance(given, ast.Call) and module.name_of(given.func) == "list" and given.args:
            yield Hit(call.node, f"everything is listed for each draw: {text_of(call.node)}", call.attr, fix=_DRAW)


_DRAW = Fix(
    text="Draw indices instead of copying everything.",
    code="""rng = np.random.default_rng(seed)
picked = rng.choice(n, size=k, replace=False)      # RandomState.choice permutes all n first
keys = list(table)                                 # once, and again only when the table changes""",
    link="https://numpy.org/doc/stable/reference/random/generated/numpy.random.Generator.choice.html",
)
_FEW = 10_000


def _runs_often(module: Module, call: SourceCall) -> bool:
    """Return whether a sort runs again and again, or a permutation of many in each step."""
    if call.attr not in ("randperm", "permutation"):
        return module.repeats(call.context)
    number = module.constant(call.node.args[0], call.context) if call.node.args else 0
    return call.context.hot and not (isinstance(number, int) and number <= _FEW)


def _sorts_many(module: Module, call: SourceCall) -> bool:
    """Return whether Python sorts in each step what may be many: not the files of a folder."""
    given = call.node.args[0] if call.node.args else None
    listed = isinstance(given, ast.Call) and re.search(r"glob|listdir|iterdir", text_of(given.func)) is not None
    return module.is_program and call.context.hot and not listed and not isinstance(given, ast.List | ast.Tuple)


def _hit(call: SourceCall, message: str) -> Hit:
    what = "everything is shuffled" if call.attr in ("randperm", "permutation") else "everything is sorted"
    return Hit(call.node, f"{what}, few elements are used: {message}", call.attr)


def _needs_order(call: SourceCall) -> bool:
    """Return whether a sort is stable on purpose, or a permutation is over the parts of one sample."""
    if literal(keyword(call.node, "stable")) is True:
        return True
    return call.context.in_module and call.attr in ("randperm", "permutation")


def _named(module: Module, calls: list[SourceCall]) -> dict[str, SourceCall]:
    """Return the calls whose result has a name of its own, by that name."""
    by_node: dict[ast.expr, SourceCall] = {call.node: call for call in calls}
    own = [assign for assign in module.assigns if calls and assign.context.function is calls[0].context.function]
    found: dict[str, SourceCall] = {}
    for assign in own:
        root = _root(assign.expression)
        if root in by_node and assign.how in ("=", "unpack"):
            found[assign.target] = by_node[root]
    again = [assign.target for assign in own]
    return {name: call for name, call in found.items() if again.count(name) == 1 and name.isidentifier()}


def _root(node: ast.expr) -> ast.expr:
    """Return what is indexed, in ``x.sort(dim=1).indices[:, :k]`` the sort."""
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return node


def _takes_few(node: ast.Subscript) -> bool:
    """Return whether a slice ends somewhere: ``[:k]``, ``[:, 1 : k + 1]``, or is the end: ``[-k:]``."""
    return any(isinstance(part, ast.Slice) and _is_short(part) for part in indices(node))


def _is_short(part: ast.Slice) -> bool:
    if part.step is not None or any(
        isinstance(item, ast.BinOp) and isinstance(item.op, ast.Mult | ast.FloorDiv | ast.Sub)
        for item in ast.walk(part)
    ):
        return False  # a chunk of all, or a share of it
    if part.upper is not None:
        whole = isinstance(part.upper, ast.UnaryOp)  # all but the last
        return not whole and literal(part.lower) in (..., 0, 1) and not isinstance(part.lower, ast.Name)
    return isinstance(part.lower, ast.UnaryOp) and isinstance(part.lower.op, ast.USub)
