"""A turn: the code that repeats, what is known of it before its abstract run, and what the run reads of it."""

import ast
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import NamedTuple

from torchtriage.diagnose.lint.facts import Class, Module, SourceCall, SourceFunction, SourceLoop
from torchtriage.diagnose.lint.syntax import attributes_in, keyword, literal, names_in, path_of
from torchtriage.diagnose.lint.work_syntax import bound_names, indexed_paths, local_names, parameters, stored_attributes
from torchtriage.diagnose.lint.work_words import HEAVY

FIXED, VARIES = 0, 1
"""Levels of an expression: the same in every turn, or not known to be."""


class Piece(NamedTuple):
    """Work that stays the same: where it stands, and what it costs in light operations."""

    node: ast.expr | ast.stmt
    weight: int
    function: SourceFunction | None


@dataclass(eq=False)
class Reading:
    """What is known of an expression, or of all that a call does; ``pieces`` : work in it that stays the same."""

    level: int = FIXED
    weight: int = 0
    effect: bool = False
    pieces: list[Piece] = field(default_factory=list)
    mutates: frozenset[str] = frozenset()

    @property
    def lasts(self) -> bool:
        """Whether it is the same in every turn and does nothing else."""
        return self.level == FIXED and not self.effect

    def pieces_at(self, node: ast.expr, function: SourceFunction | None) -> list[Piece]:
        """Return the largest pieces that stay the same, which may be all of it."""
        if not self.lasts:
            return self.pieces
        return [Piece(node, self.weight, function)] if self.weight else []


class FileFacts:
    """What all turns of one file ask for."""

    def __init__(self, module: Module) -> None:
        self.module = module
        # kept for this file: several turns ask the same of the same code
        self.stores, self.indexed, self.locals = cache(stored_attributes), cache(indexed_paths), cache(local_names)

    @cached_property
    def learned(self) -> frozenset[str]:
        """Return the names and attributes that training changes: parameters, what an optimizer is given."""
        found: set[str] = set()
        for call in self.module.calls:
            if call.attr in ("Parameter", "requires_grad_") or literal(keyword(call.node, "requires_grad")) is True:
                found |= {_dotted(outer.target) for outer in (call, *call.users())}
            if call.attr == "requires_grad_" and call.owner is not None:
                found.add(_dotted(path_of(call.owner)))
            if call.value.kind == "optimizer" or call.name.startswith("torch.optim."):
                for argument in call.node.args[:1]:
                    found |= {f".{name}" for name in attributes_in(argument)} | names_in(argument)
        return frozenset(found - {"self", "", ".parameters"} - set(self.module.aliases))

    @cached_property
    def searching(self) -> set[SourceFunction]:
        """Return the functions with costly calls of nothing but what they are given."""
        known = {*self.module.aliases, *(function.name for function in self.module.functions)}
        return {
            function
            for function, calls in self.module.calls_by_function.items()
            if function is not None
            and any(call.attr in HEAVY and names_in(call.node) <= parameters(function.node) | known for call in calls)
        }

    def assigns(self, owner: Class, attr: str) -> bool:
        """Return whether a class, or one that it derives from, gives an attribute a value."""
        return any(attr in self.stores(known.node) for known in (owner, *owner.parents))

    def reached(self, calls: Iterable[SourceCall]) -> set[SourceFunction]:
        """Return the functions of the file that calls lead to."""
        found: set[SourceFunction] = set()
        pending = [callee for call in calls for callee in call.callees]
        while pending:
            function = pending.pop()
            if function not in found:
                found.add(function)
                pending += [callee for call in self.module.calls_by_function[function] for callee in call.callees]
        return found


class Turn:
    """The body of a loop, or a function that is a step; ``axis`` : the one target of the loop that changes.

    ``trains`` : whether weights change from turn to turn. ``stored`` : attributes that it gives values to.
    ``shared`` : names that it binds. ``mutated`` : names from outside that its run sees change. ``readings`` : what
    calls of functions do, by function, by which of its parameters vary, and by whether its object stays the same.
    """

    def __init__(self, facts: FileFacts, source: SourceLoop | SourceFunction, axis: str | None = None) -> None:
        self.facts, self.module, self.axis = facts, facts.module, axis
        self.loop = loop = source if isinstance(source, SourceLoop) else None
        self.step = source if isinstance(source, SourceFunction) else None
        self.stepwise = loop is None or loop.steps
        """Whether turns are steps of training or inference."""
        function = loop.function if loop is not None else self.step
        calls = self.module.calls_by_function
        inside = [call for call in calls[function] if loop is None or loop in call.context.loops()]
        reached = facts.reached(inside)
        self._bodies: list[ast.AST] = [source.node, *(function.node for function in reached)]
        self.stored = facts.stores(source.node).union(
            *(facts.stores(function.node) for function in reached if function.name != "__init__")
        )
        everything = [*inside, *(call for function in reached for call in calls[function])]
        self.trains = loop is None or any(
            call.attr in ("backward", "step", "load_state_dict", "train", "manual_backward") for call in everything
        )
        self.shared = bound_names(source.node) if loop is not None else set()
        self.mutated: set[str] = set()
        self.readings: dict[tuple[SourceFunction, frozenset[str], bool], Reading] = {}
        self.active: set[SourceFunction] = set()

    def is_whole(self, node: ast.expr) -> bool:
        """Return whether an expression is all of an array of which each turn takes a few rows."""
        while isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
            node = node.value  # a column
        path = path_of(node)
        return bool(path) and path in self._indexed

    @cached_property
    def _indexed(self) -> frozenset[str]:
        return frozenset().union(*(self.facts.indexed(body) for body in self._bodies))


def _dotted(path: str) -> str:
    """Return a variable's name as it is, an attribute's with its dot."""
    root, dot, last = path.rpartition(".")
    return dot + last if root else last
