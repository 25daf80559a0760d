"""A long list is searched from its beginning, or a deque walked through, for each element.

Looks like: ``i not in self.labeled`` in a comprehension or a step, where ``labeled`` is a list that grows or
    has as many elements as the data; ``ids.index(x)`` and ``ids.remove(x)`` in a loop;
    ``random.sample(memory, n)`` and ``memory[i]`` of a large ``collections.deque``.
Slow because: a list compares element after element, a deque walks from its end: the work is the product
    of both lengths.
Fix: a ``set`` alongside the list, a dictionary from element to place, a boolean mask; a list used as a ring where
    places are drawn at random.
Quiet when: the list is written out in the source, is made and not grown from a constant, or lives in a
    file that only others import; a deque with ``maxlen`` of at most a thousand.
Source: Python wiki, "TimeComplexity"; Python documentation of ``collections.deque``.
"""

import ast
import re
from collections.abc import Iterator

from torchtriage.diagnose.lint.base import Assign, Context, Fix, Hit, Module, Rule, SourceFunction, text_of
from torchtriage.diagnose.lint.syntax import argument, path_of

RULE = Rule("HST118", "linear-search", "host", "A long list is searched for each element", "low")

FIX = Fix(
    text="Look elements up in a set or dict, or by index.",
    code="""labeled = set(labeled)                    # once; or a mask: free = torch.ones(n, dtype=torch.bool)
unlabeled = [i for i in range(n) if i not in labeled]
place = {name: i for i, name in enumerate(names)}   # instead of names.index(name)""",
    link="https://wiki.python.org/moin/TimeComplexity",
)

_SHORT = 1000
MIN_TURNS = 32
_DRAWS = ("random.sample", "random.choice", "random.choices")


def find(module: Module) -> Iterator[Hit]:
    """Yield searches in lists, and random access to deques, that are done again and again."""
    if not module.takes_steps:
        return
    for search in module.searches:
        if isinstance(search.node, ast.Compare) and _searched(module, search.node.comparators[-1], search.context):
            yield Hit(search.node, f"this list is searched from the start each time: {text_of(search.node)}")
    for call in module.sent("index", "remove", "count"):
        if call.owner is not None and len(call.node.args) == 1 and _searched(module, call.owner, call.context):
            yield Hit(call.node, f"this list is searched from the start each time: {text_of(call.node)}", call.attr)
    if "deque" in module.text:
        yield from _deques(module)


def _searched(module: Module, node: ast.expr, context: Context) -> bool:
    """Return whether a long list is searched in a loop that does not make it."""
    loop = context.loop
    loads = context.loads and not context.rare
    if loop is None or loop.turns_below(MIN_TURNS):
        again = context.hot
    else:
        again = module.repeats(loop.context) or (not loop.comprehension and module.repeats(context))
    if not again and not loads:
        return False
    if isinstance(node, ast.Subscript):
        path = path_of(node.value)
        nested = loop is not None and (loop.outer is not None or loads)
        return bool(path) and nested and _holds_lists(module, path)
    path = path_of(node)
    if not path or (loop is not None and path in loop.assigned):
        return False
    return _is_long(module, path, context)


def _holds_lists(module: Module, path: str) -> bool:
    """Return whether a table has lists as its entries, which grow one by one: ``defaultdict(list)``."""
    made = [item for item in module.assigns_to(path) if item.how == "="]
    owners = [call.owner for call in module.sent("append")]
    if any(
        isinstance(owner, ast.Call) and text_of(owner.func) == f"{path}.setdefault" and text_of(owner.args[-1]) == "[]"
        for owner in owners
    ):
        return True
    grown = any(isinstance(owner, ast.Subscript) and path_of(owner.value) == path for owner in owners)
    return grown and bool(made) and all(_makes_lists(module, item.expression) for item in made)


def _makes_lists(module: Module, node: ast.expr) -> bool:
    if isinstance(node, ast.Call):
        kind = [text_of(item) for item in node.args]
        return module.name_of(node.func) == "collections.defaultdict" and kind == ["list"]
    entry = node.elt if isinstance(node, ast.ListComp) else node.value if isinstance(node, ast.DictComp) else None
    return isinstance(entry, ast.List) and not entry.elts


def _is_long(module: Module, path: str, context: Context, depth: int = 0) -> bool:
    """Return whether a name is a list that grows, or is as long as some data, or as what is searched for in it."""
    function = context.function
    made, grown = [], False
    for assign in module.assigns_to(path):
        if not _same_scope(path, assign.context.function, function):
            continue
        if assign.how == "=":
            made.append(assign.expression)
        else:
            grown = grown or _grows(module, assign, context)
    if made:
        over = {loop.over for loop in context.loops() if loop.over} - {path}
        return all(_makes_list(module, node) for node in made) and (
            grown or any(_has_length(node) or _source(node) in over for node in made)
        )
    if function is None or path not in function.places or depth:
        return False
    passed = list(module.passed(function, path))
    return bool(passed) and all(
        _is_long(module, path_of(node), scope, depth + 1) if path_of(node) else _has_length(node)
        for node, scope in passed
    )


def _grows(module: Module, assign: Assign, context: Context) -> bool:
    """Return whether a list gets longer from step to step, or in the loop that searches it."""
    if "." in assign.target:
        return module.repeats(assign.context)
    if assign.context.step_loop is not None:
        return True
    around, searching = set(assign.context.loops()), set(context.loops())
    return any(not loop.comprehension and loop.n_constant is None for loop in around & searching)


def _source(node: ast.expr) -> str:
    """Return the path of what a list has an element for each of."""
    if isinstance(node, ast.ListComp) and len(node.generators) == 1 and not node.generators[0].ifs:
        return path_of(node.generators[0].iter)
    if isinstance(node, ast.Call) and path_of(node.func) in ("list", "sorted") and node.args:
        return path_of(node.args[0])
    return ""


def _same_scope(path: str, made: SourceFunction | None, read: SourceFunction | None) -> bool:
    """Return whether a name that is bound in one function is the one that another reads."""
    if "." in path or made is read or made is None:
        owners = {item.owner for item in (made, read) if item is not None}
        return not path.startswith("self.") or len(owners) == 1
    outer = read.outer if read is not None else None
    while outer is not None and outer is not made:
        outer = outer.outer
    return outer is made


_LISTS = ("list", "sorted", "os.listdir", "glob.glob", "random.sample")
_GIVES_LIST = ("tolist", "split", "splitlines", "readlines")


def _makes_list(module: Module, node: ast.expr) -> bool:
    if isinstance(node, ast.BinOp):
        return _makes_list(module, node.left) or _makes_list(module, node.right)
    if isinstance(node, ast.Call):
        return module.name_of(node.func) in _LISTS or text_of(node.func, 999).rpartition(".")[2] in _GIVES_LIST
    return isinstance(node, ast.List | ast.ListComp)


_DATA = re.compile(
    r"\.tolist\(|range\((?!\d{1,3}\))|\bset\(|\.split\(|open\(|\.read|glob\(|listdir\(|\.keys\(|\.unique\(|randperm\(|choice\("
    r"|sample\(|permutation\(|where\(|nonzero\("
)


def _has_length(node: ast.expr) -> bool:
    """Return whether a list is as long as some data that it is made of."""
    inner = node.generators[0].iter if isinstance(node, ast.ListComp) else node
    return isinstance(inner, ast.Call) and _DATA.search(text_of(inner, 999)) is not None


def _deques(module: Module) -> Iterator[Hit]:
    """Yield access to large deques by place."""
    paths = {
        assign.target
        for assign in module.assigns
        if isinstance(assign.expression, ast.Call)
        and module.name_of(assign.expression.func) == "collections.deque"
        and not _is_bounded(module, assign.expression, assign.context)
    }
    if not paths:
        return
    for call in module.called(*_DRAWS):
        path = path_of(call.node.args[0]) if call.node.args else ""
        if path in paths and module.repeats(call.context):
            yield Hit(call.node, f"each access walks through the deque: {text_of(call.node)}", call.attr)
    for loop in module.loops:
        if isinstance(loop.node, ast.While) or not module.repeats(loop.context) or loop.over in paths:
            continue
        for node in module.nodes(loop):
            if isinstance(node, ast.Subscript) and path_of(node.value) in paths and path_of(node.slice) in loop.targets:
                yield Hit(node, f"each access walks through the deque: {text_of(node)}")
                break


def _is_bounded(module: Module, node: ast.Call, context: Context) -> bool:
    given = argument(node, "maxlen", 1)
    bound = module.constant(given, context) if given is not None else ...
    return isinstance(bound, int) and bound <= _SHORT
