"""Expressions in an abstract turn: which stay the same from turn to turn, and what they cost."""

import ast
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable

from torchtriage.diagnose.lint.facts import Module, SourceCall, SourceFunction
from torchtriage.diagnose.lint.syntax import hides, is_self, names_in, path_of
from torchtriage.diagnose.lint.torch_names import REDUCTIONS
from torchtriage.diagnose.lint.turns import FIXED, VARIES, Piece, Reading, Turn
from torchtriage.diagnose.lint.work_syntax import Comprehension, by_element, is_long, is_outer, parameters
from torchtriage.diagnose.lint.work_words import (
    COSTLY,
    ESTIMATES,
    MUTATORS,
    PARTS,
    PURE_BUILTINS,
    PURE_LIBRARY,
    PURE_METHODS,
    RANDOM,
    SETTINGS,
    TOKENIZER,
    weight,
)

MANY = 4
"""How often a loop of unknown length is taken to turn."""

_Parts = list[tuple[Reading, ast.expr]]


class Expressions(ABC):
    """The names of one function in one turn, and what its expressions are.

    ``own`` : whether its ``self`` is the same in every turn. ``top`` : whether it is the loop itself. ``fresh`` :
    names of what the turn has made, ``made`` : from which expression. ``conditional``, ``inner`` : how many conditions
    and loops are around what is read. ``varied`` : how much has been read that varies.
    """

    def __init__(self, turn: Turn, function: SourceFunction | None, *, own: bool = True, top: bool = False) -> None:
        self.turn, self.function, self.own, self.top = turn, function, own, top
        self.module = turn.module
        self.levels: dict[str, int] = {}
        self.fresh: set[str] = set()
        self.made: dict[str, ast.expr] = {}
        self.mutates: set[str] = set()
        self.effect = False
        self.pieces: list[Piece] = []
        self.conditional = self.inner = self.varied = 0

    @abstractmethod
    def visit(self, function: SourceFunction, varying: frozenset[str], *, own: bool) -> Reading:
        """Return what a call of a function does, where some of what it is given varies."""

    def bind(self, target: ast.expr, reading: Reading, value: ast.expr | None) -> None:
        """Give what stands left of ``=`` its level."""
        if isinstance(target, ast.Name):
            self.levels[target.id] = VARIES if self.conditional else reading.level
            if value is not None and not isinstance(value, ast.Name | ast.Attribute | ast.Subscript):
                self.fresh.add(target.id)
                self.made[target.id] = value
            else:
                self.fresh.discard(target.id)
        elif isinstance(target, ast.Tuple | ast.List):
            if isinstance(value, ast.Tuple | ast.List) and len(value.elts) == len(target.elts):
                for item, part in zip(target.elts, value.elts, strict=True):
                    self.bind(item, self.eval(part), part)
            else:
                for item in target.elts:
                    self.bind(item, reading, value)
        elif isinstance(target, ast.Starred):
            self.bind(target.value, reading, value)
        elif isinstance(target, ast.Attribute | ast.Subscript):
            self.change(target, reading.level)

    def change(self, target: ast.expr, level: int, *, rebinds: bool = False) -> None:
        """Note that what a name stands for, or a part of it, gets another value."""
        node = target
        while isinstance(node, ast.Attribute | ast.Subscript | ast.Call):
            if isinstance(node, ast.Subscript):
                level = max(level, self.eval(node.slice).level)
            node = node.func if isinstance(node, ast.Call) else node.value
        if self.conditional:
            level = VARIES
        if not isinstance(node, ast.Name):
            self.effect = True
            return
        name = node.id
        if name == "self" and self.function is not None and self.function.name == "__init__":
            return
        if name in self.fresh:
            self.levels[name] = max(self.levels.get(name, FIXED), level)
            if level != FIXED and name in self.made:
                # each turn needs one of its own
                self.pieces = [piece for piece in self.pieces if piece.node is not self.made[name]]
        elif rebinds and name in self.levels:
            # a plain ``x += 1`` of a name that this turn has bound
            self.levels[name] = max(self.levels[name], level)
            self.mutates.add(name)
            self.varied += level != FIXED
        else:
            self.effect = True
            self.varied += 1
            self.mutates.add(name)
            if name != "self":
                self.levels[name] = VARIES
                if self.top or not self._binds(name):
                    self.turn.mutated.add(name)

    def eval(self, node: ast.expr) -> Reading:
        """Return whether an expression stays the same, and what it costs."""
        if isinstance(node, ast.Constant | ast.Lambda):
            return Reading()
        if isinstance(node, ast.Name):
            return Reading(self._name(node.id))
        if isinstance(node, ast.Attribute):
            return self._attribute(node)
        if isinstance(node, ast.Call):
            return self._call(node)
        if isinstance(node, Comprehension):
            return self._comprehension(node)
        if isinstance(node, ast.Await | ast.Yield | ast.YieldFrom):
            return self._unknown(self._parts([node.value] if node.value is not None else []))
        if isinstance(node, ast.NamedExpr):
            reading = self.eval(node.value)
            self.bind(node.target, reading, node.value)
            return reading
        children = [child for child in ast.iter_child_nodes(node) if isinstance(child, ast.expr)]
        own_weight = 0
        if isinstance(node, ast.BinOp):
            heavy = isinstance(node.op, ast.MatMult) or is_outer(node)
            heavy = heavy or self.turn.is_whole(node.left) or self.turn.is_whole(node.right)
            own_weight = COSTLY if heavy else int(self.module.value(node).kind in ("tensor", "numpy"))
        if isinstance(node, ast.JoinedStr):
            children = [item.value for item in node.values if isinstance(item, ast.FormattedValue)]
        return self._join(self._parts(children), weight=own_weight)

    def _parts(self, nodes: Iterable[ast.expr]) -> _Parts:
        return [(self.eval(node), node) for node in nodes]

    def _join(self, parts: _Parts, level: int = FIXED, weight: int = 0, *, effect: bool = False) -> Reading:
        """Return what is computed of parts; parts that stay the same in what does not are pieces of their own."""
        level = max([level, *(reading.level for reading, _ in parts)])
        effect = effect or any(reading.effect for reading, _ in parts)
        if level == FIXED and not effect:
            return Reading(FIXED, weight + sum(reading.weight for reading, _ in parts))
        pieces = [piece for reading, node in parts for piece in reading.pieces_at(node, self.function)]
        return Reading(level, weight, effect, pieces)

    def _unknown(self, parts: _Parts) -> Reading:
        """Return what may be anything and do anything."""
        return self._join(parts, VARIES, effect=True)

    def _binds(self, name: str) -> bool:
        return self.function is not None and name in self.turn.facts.locals(self.function.node)

    def _name(self, name: str) -> int:
        """Return whether a variable stays the same."""
        if self.turn.trains and name in self.turn.facts.learned:
            return VARIES
        if name in self.levels:
            return self.levels[name]
        if name == "self":
            return FIXED if self.own else VARIES
        if self._binds(name):
            # bound before the loop, or not yet
            return FIXED if self.top else VARIES
        if name in self.turn.mutated:
            return VARIES
        if self.turn.loop is not None and name in self.turn.shared:
            around = self.turn.loop.function
            if around is None or (self.function is not None and self.function.outer is around):
                return VARIES
        return FIXED

    def _attribute(self, node: ast.Attribute) -> Reading:
        root, attr = path_of(node).partition(".")[0], node.attr
        if root in self.module.aliases and root not in self.levels:
            return Reading()
        base = self.eval(node.value)
        turn = self.turn
        if attr in ("shape", "dtype", "device", "ndim") and base.level == FIXED:
            return Reading()
        if attr in turn.stored or attr == "grad" or (turn.trains and f".{attr}" in turn.facts.learned):
            return self._join([(base, node.value)], VARIES)
        owner = self.function.owner if self.function is not None else None
        if is_self(node.value) and owner is not None:
            known = owner.attribute(attr)
            if known is not None and turn.trains and known.kind == "tensor" and known.of == "parameter":
                return Reading(VARIES)
            if known is None and owner.is_module and attr not in SETTINGS and not turn.facts.assigns(owner, attr):
                return Reading(VARIES)
            if not self.own and known is not None and known.kind == "host":
                return Reading()  # layers of one kind share their settings
        elif turn.trains and self.module.value(node.value).kind == "module":
            return Reading(VARIES)
        return self._join([(base, node.value)])

    def _comprehension(self, node: Comprehension) -> Reading:
        saved, fresh = dict(self.levels), set(self.fresh)
        parts: _Parts = []
        for generator in node.generators:
            over = self.eval(generator.iter)
            parts.append((over, generator.iter))
            self.bind(generator.target, elements(self.module, generator.iter, over), generator.iter)
            parts += self._parts(generator.ifs)
        short = isinstance(node.generators[0].iter, ast.Tuple | ast.List)
        for item in [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]:
            reading = self.eval(item)
            reading.weight *= 1 if short else MANY
            reading.pieces = [piece._replace(weight=piece.weight * MANY) for piece in reading.pieces]
            parts.append((reading, item))
        self.levels, self.fresh = saved, fresh
        made = node.value if isinstance(node, ast.DictComp) else node.elt
        picks = isinstance(made, ast.Subscript) and len(node.generators) == 1  # of a dictionary of tensors, say
        nested = is_long(node) and not picks and (self.inner > 0 or len(node.generators) > 1)
        return self._join(parts, weight=COSTLY if nested or by_element(node) else 0)

    # -- calls ---------------------------------------------------------------------------------

    def _call(self, node: ast.Call) -> Reading:
        call = self.turn.module.calls_by_node.get(node)
        func = node.func
        parts = self._parts(item.value if isinstance(item, ast.Starred) else item for item in node.args)
        parts += self._parts(item.value for item in node.keywords)
        if path_of(func).endswith("shuffle") and node.args:
            self.change(node.args[0], VARIES)  # in place
        root = path_of(func).partition(".")[0]
        imported = root in self.module.aliases and root not in self.levels
        if call is not None and call.callees:
            return self._own(node, call, parts)
        if any(item.arg == "out" for item in node.keywords):
            return self._unknown(parts)
        if imported:
            return self._library(self.module.name_of(func), func, parts)
        if isinstance(func, ast.Attribute):
            return self._method(node, func, parts)
        if not isinstance(func, ast.Name):
            return self._unknown(parts)
        if func.id not in self.levels and not self._binds(func.id):
            return self._global(func.id, parts)
        parts = [(self.eval(func), func), *parts]
        if TOKENIZER.search(func.id):
            return self._join(parts, weight=COSTLY)
        if self.module.value(func).kind == "module" or (call is not None and call.receiver.kind == "module"):
            return self._module(parts)
        return self._unknown(parts)

    def _global(self, name: str, parts: _Parts) -> Reading:
        """Return what a function of Python, or a class of the file, gives."""
        if name in PURE_BUILTINS:
            return self._join(parts)
        made = self.module.classes.get(name)
        if made is None:
            return self._unknown(parts)
        return self._join(parts, VARIES if made.is_module else FIXED)

    def _library(self, name: str, func: ast.expr, parts: _Parts) -> Reading:
        """Return what a function of a library gives."""
        attr = func.attr if isinstance(func, ast.Attribute) else path_of(func)
        if RANDOM.search(name.rpartition(".")[2]) and attr != "empty":
            return self._unknown(parts)
        if attr == "from_pretrained":
            return self._join(parts, weight=COSTLY)
        if PURE_LIBRARY.match(name):
            whole = bool(parts) and attr in REDUCTIONS and self.turn.is_whole(parts[0][1])
            return self._join(parts, weight=COSTLY if whole else weight(name, attr))
        if attr[:1].isupper() and not re.search(r"Loader|Process|Thread|Pool|Writer|Queue|Random|Model|Net$", attr):
            return self._join(parts, VARIES if name.startswith(("torch.nn.", "torch.optim.")) else FIXED)
        return self._unknown(parts)

    def _method(self, node: ast.Call, func: ast.Attribute, parts: _Parts) -> Reading:
        """Return what a method of an object of a library gives."""
        attr = func.attr
        given = max((reading.level for reading, _ in parts), default=FIXED)
        parts = [(self.eval(func.value), func.value), *parts]
        kind = self.module.value(func.value).kind
        if attr in PARTS:
            return self._join(parts, VARIES if self.turn.trains else FIXED)
        if kind == "module" or self.module.value(func).kind == "module":
            return self._module(parts)
        in_place = attr.endswith("_") and not attr.startswith("_")
        if attr in MUTATORS or in_place:
            before, self.effect = self.effect, False
            self.change(func.value, given)
            effect, self.effect = self.effect, before
            return self._join(parts, VARIES if effect else FIXED, int(in_place), effect=effect)
        # a queue's get() takes nothing
        if RANDOM.search(attr) or (attr == "get" and not node.args):
            return self._unknown(parts)
        if attr in ESTIMATES or TOKENIZER.search(attr) or TOKENIZER.search(path_of(func.value)):
            return self._join(parts, weight=COSTLY)
        if attr in PURE_METHODS or kind in ("tensor", "numpy"):
            whole = attr in REDUCTIONS and self.turn.is_whole(func.value)
            return self._join(parts, weight=COSTLY if whole else weight("", attr))
        return self._unknown(parts)

    def _module(self, parts: _Parts) -> Reading:
        """Return what a module gives: its weights change where training goes on, its dropout is random."""
        frozen = not self.turn.trains and (".eval()" in self.module.text or "inference_mode" in self.module.text)
        return self._join(parts, FIXED if frozen else VARIES, COSTLY)

    def _own(self, node: ast.Call, call: SourceCall, parts: _Parts) -> Reading:
        """Return what a function of the file gives for what it is given here."""
        func = node.func
        owned = FIXED
        if isinstance(func, ast.Attribute) and path_of(func).partition(".")[0] not in self.module.aliases:
            receiver = self.eval(func.value)
            owned = receiver.level
            parts = [(receiver, func.value), *parts]
        elif isinstance(func, ast.Name):
            owned = self.levels.get(func.id, FIXED)
        own = owned == FIXED or self._is_member(func)
        if len(call.callees) > 4:
            return self._unknown(parts)
        done = Reading(owned)
        for callee in call.callees:
            constructor = callee.name == "__init__"
            given = callee.given_by(node)
            varying = {name for name, item in given.items() if self.eval(item).level != FIXED}
            if hides(node) or len(node.args) > len(callee.places):
                varying = parameters(callee.node) - {"self"}
            reading = self.visit(callee, frozenset(varying), own=own or constructor)
            if (
                callee.owner is not None
                and callee.owner.is_module
                and (constructor or (self.turn.trains and callee.name == "forward"))
            ):
                done.level = VARIES  # whoever builds one draws its weights; whoever runs one may drop parts at random
            done.level = max(done.level, reading.level)
            done.weight += reading.weight
            done.effect = done.effect or reading.effect
            done.pieces = done.pieces + reading.pieces
            for name in reading.mutates & given.keys():
                self.change(given[name], VARIES)
        if call.callees[0].name in _TOKENIZES:
            done.weight = max(done.weight, COSTLY)
        if call.callees[0].name == "__init__":
            done.level = max([done.level, *(reading.level for reading, _ in parts)])
        result = self._join(parts, done.level, done.weight, effect=done.effect)
        if not result.lasts:
            result.pieces = result.pieces + done.pieces
            if done.lasts:
                result.level = FIXED
                result.effect = any(reading.effect for reading, _ in parts)
        return result

    def _is_member(self, func: ast.expr) -> bool:
        """Return whether a method's object is one of several that outlive the turn, and is asked again later."""
        if not isinstance(func, ast.Attribute) or not isinstance(func.value, ast.Subscript):
            return False
        holder = func.value
        targets = self.turn.loop.targets if self.turn.loop is not None and self.top else frozenset()
        return self.eval(holder.value).level == FIXED and not (names_in(holder.slice) & targets)


_TOKENIZES = frozenset(["encode", "tokenize", "numericalize", "encode_text", "texts_to_ids"])
"""Functions that go over whole texts, by their names."""


def elements(module: Module, iterable: ast.expr, reading: Reading) -> Reading:
    """Return what a loop takes from what it goes over: a loader shuffles, and weights change."""
    return Reading(VARIES if module.value(iterable).kind in ("loader", "params") else reading.level)
