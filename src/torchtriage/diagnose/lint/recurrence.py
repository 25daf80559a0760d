"""What stays the same from turn to turn: an abstract run of the code that repeats.

A turn is the body of a loop, or one call of a function that is a step by itself (``forward``, ``__getitem__``). The run
goes through a turn in order and into the functions of the file that it calls. It follows for each expression whether
its value is the same in every turn, what it costs, and whether computing it does anything else. What is costly, the
same, and does nothing else need not be computed again.
"""

import ast
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from torchtriage.diagnose.lint.abstract_turn import lasting_work
from torchtriage.diagnose.lint.facts import Module, SourceFunction, SourceLoop, is_step
from torchtriage.diagnose.lint.syntax import names_in, path_of
from torchtriage.diagnose.lint.turns import FileFacts, Piece, Turn
from torchtriage.diagnose.lint.work_syntax import parameters
from torchtriage.diagnose.lint.work_words import COSTLY, HEAVY, LOADS, MEASURES

_PIECES, _TOGETHER, _HELPER = 3, 8, 5


@dataclass(frozen=True, eq=False)
class Repeated:
    """An expression that each turn computes again from what stays the same.

    ``loop`` : the loop whose turns do, None for a function that is a step. ``function`` : where it
    stands. ``weight`` : what it costs, in light operations.
    """

    node: ast.expr | ast.stmt
    weight: int
    function: SourceFunction | None
    loop: SourceLoop | None
    step: SourceFunction | None


def repeated(module: Module) -> tuple[Repeated, ...]:
    """Return the costly work of a file that turns do again from what stays the same, each place once."""
    facts = FileFacts(module)
    found: dict[ast.AST, Repeated] = {}
    for turn in _turns(facts):
        pieces = lasting_work(turn)
        costly = [piece for piece in pieces if piece.weight >= _least(facts, turn, piece)]
        for piece in [*costly, *(_chains(pieces) if turn.stepwise else ())]:
            found.setdefault(piece.node, Repeated(piece.node, piece.weight, piece.function, turn.loop, turn.step))
    return tuple(found.values())


def _least(facts: FileFacts, turn: Turn, piece: Piece) -> int:
    """Return the weight from which a piece is worth a line: less for a helper that a step calls for a table."""
    call = facts.module.calls_by_node.get(piece.node) if turn.stepwise else None
    return _HELPER if call is not None and call.callees else COSTLY


def _chains(pieces: list[Piece]) -> Iterator[Piece]:
    """Yield the heaviest piece of light work whose pieces together are costly: a table made line by line."""
    by_function: dict[SourceFunction | None, list[Piece]] = defaultdict(list)
    for piece in pieces:
        by_function[piece.function].append(piece)
    for group in by_function.values():
        heaviest = max(group, key=lambda piece: piece.weight)
        total = sum(piece.weight for piece in group)
        if len(group) >= _PIECES and heaviest.weight < COSTLY and total >= _TOGETHER:
            yield heaviest._replace(weight=total)


def _turns(facts: FileFacts) -> Iterator[Turn]:
    module = facts.module
    for loop in module.loops:
        if loop.comprehension or loop.short or loop.times:
            continue
        if not module.is_program and not (loop.steps and _may_stay(facts, loop)):
            continue
        around = loop.function.qualname if loop.function is not None else ""
        if MEASURES.search(around) or MEASURES.search(" ".join((*sorted(loop.targets), loop.over))):
            continue
        yield from (Turn(facts, loop, axis) for axis in _axes(module, loop) or (None,))
    for function in module.functions:
        if _is_turn(function) and _may_repeat(facts, function):
            yield Turn(facts, function)


def _is_turn(function: SourceFunction) -> bool:
    """Return whether a function's calls are turns of something that is not in sight."""
    if is_step(function) or function.serves:
        return True
    owner = function.owner
    return (
        function.name == "__getitem__"
        and owner is not None
        and (function.loads or any(LOADS.search(base) for base in owner.bases))
    )


def _may_repeat(facts: FileFacts, function: SourceFunction) -> bool:
    """Return whether anything costly there takes none of what the function is given."""
    if facts.module.is_program or function.name == "__getitem__":
        return True
    given = parameters(function.node) - {"self"}
    return any(
        call.attr in HEAVY and not (names_in(call.node) & given) and names_in(call.node) & {"self"}
        for call in facts.module.calls_by_function[function]
    )


def _may_stay(facts: FileFacts, loop: SourceLoop) -> bool:
    """Return whether anything costly in a loop, or in what it calls, takes none of what the loop changes."""
    changing = loop.targets | loop.assigned.keys()
    inside = [call for call in facts.module.calls_by_function[loop.function] if loop in call.context.loops()]
    if any(call.attr in HEAVY and not names_in(call.node) & changing for call in inside):
        return True
    return not facts.searching.isdisjoint(facts.reached(inside))


def _axes(module: Module, loop: SourceLoop) -> list[str]:
    """Return the targets of a loop over a product of lists: each stays while another one changes."""
    node = loop.node
    if not isinstance(node, ast.For) or not isinstance(node.target, ast.Tuple):
        return []
    source: ast.expr = node.iter
    for _ in range(4):
        if isinstance(source, ast.Name):
            made = [
                assign.expression
                for assign in module.assigns_to(source.id)
                if assign.how == "=" and assign.context.function is loop.function
            ]
            if len(made) != 1:
                return []
            source = made[0]
        elif isinstance(source, ast.Call) and path_of(source.func) in ("list", "tuple", "tqdm") and source.args:
            source = source.args[0]
        else:
            break
    n_axes = 0
    if isinstance(source, ast.Call) and module.name_of(source.func) == "itertools.product":
        n_axes = len(source.args)
    elif isinstance(source, ast.ListComp | ast.GeneratorExp) and isinstance(source.elt, ast.Tuple):
        n_axes = len(source.generators)
    names = [item.id for item in node.target.elts if isinstance(item, ast.Name)]
    return names if n_axes > 1 and n_axes == len(node.target.elts) == len(names) else []
