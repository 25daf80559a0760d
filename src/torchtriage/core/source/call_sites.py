"""The call sites of one function body, and the orders in which they can run.

A body becomes a small nondeterministic automaton: its edges are call sites, its paths are the runs that branches,
loops, exceptions and early returns allow. It is generous where Python is: what may leave no trace (operators on plain
numbers, C types, cached functions) can be passed by in silence.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence

from torchtriage.core.source.flow import Flow, FlowBuilder, LoopFlow, Site
from torchtriage.core.source.functions import COMPREHENSIONS, Function
from torchtriage.core.source.operators import (
    BINARY,
    COMPARE,
    CONSUMERS,
    NUMBER,
    NUMBERS,
    READ,
    TRUTH,
    UNARY,
    VIEWED,
    VIEWS,
    WRITE,
)
from torchtriage.core.source.scopes import Names, called_name


def flow_of(function: Function, module: ast.Module) -> Flow:
    """Return the automaton of a function's own body; what it defines inside is not part of it.

    Raises RecursionError: expressions nest too deep.
    """
    return _Builder(function, module).build()


def _text(func: ast.expr) -> str:
    try:
        return ast.unparse(func)
    except (RecursionError, ValueError):
        return ""


class _Builder(FlowBuilder):
    """Walks a body in the order it runs; every method takes a state and returns the next."""

    def __init__(self, function: Function, module: ast.Module) -> None:
        super().__init__(function.first_line)
        self.function = function
        self.names = Names(function, module)

    def build(self) -> Flow:
        node = self.function.node
        at = self.flow.start
        if isinstance(node, ast.Lambda):
            at = self.expr(node.body, at)
        elif isinstance(node, ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp):
            at = self.comprehension(node, at, own=True)
        else:
            assert isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module)
            at = self.body(node.body, at)
        self.skip(at, self.flow.exit)
        return self.flow

    # -- sites -----------------------------------------------------------------------------

    def silent(self, at: int, node: ast.AST, name: str, names: Iterable[str], ops: Iterable[str] = ()) -> int:
        line = getattr(node, "lineno", self.line)
        site = Site(line, "silent", name, frozenset(names), frozenset(ops))
        return self.passing(at, site)

    def call(self, at: int, node: ast.Call) -> int:
        name = called_name(node.func)
        line = node.lineno
        if isinstance(node.func, ast.Attribute):
            # the line a method's name stands on, as in long chains
            line = node.func.end_lineno or line
        if isinstance(node.func, ast.Name) and name in CONSUMERS and name not in self.names.local:
            ops = (TRUTH if name == "bool" else NUMBER) if name in NUMBERS else ()
            read = node.args if name not in NUMBERS else []
            inner = {i for item in read for i in self.names.pending(item)} - CONSUMERS
            site = Site(
                line,
                "consume",
                name,
                frozenset(
                    {name, f"__{name}__", *inner, "__index__", "__iter__", "__next__", "__len__", "__str__", "__repr__"}
                ),
                frozenset(ops),
                callee=name,
            )
            return self.passing(at, site)
        classes, nameless, known = self.names.of(node.func)
        names = self.names.frames(node.func)
        if any(isinstance(arg, ast.GeneratorExp) for arg in node.args):
            # run by what is called, or by Python itself where that is a C type
            at = self.silent(at, node, "<genexpr>", ("<genexpr>",))
        if names & self.names.generators:
            # runs when it is read; its frames are found there
            site = Site(line, "consume", name, frozenset(names), callee=_text(node.func))
            return self.passing(at, site)
        site = Site(
            line,
            "call",
            name,
            frozenset(names),
            frozenset(),
            classes,
            nameless,
            _text(node.func),
            known,
            self.names.builtin(node.func),
        )
        return self.step(at, site)

    def test(self, node: ast.expr, at: int) -> int:
        if isinstance(node, ast.Constant):
            return at
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            return self.test(node.operand, at)
        if isinstance(node, ast.BoolOp):
            ends = []
            for value in node.values:
                at = self.test(value, at)
                ends.append(at)
            return self.join(*ends)
        at = self.expr(node, at)
        return self.silent(at, node, "bool", ("__bool__", "__len__"), TRUTH)

    # -- expressions -----------------------------------------------------------------------

    def exprs(self, nodes: Iterable[ast.expr | None], at: int) -> int:
        for node in nodes:
            if node is not None:
                at = self.expr(node, at)
        return at

    def expr(self, node: ast.expr, at: int) -> int:
        outer, self.line = self.line, node.lineno
        at = self._expr(node, at)
        self.line = outer
        return at

    def _expr(self, node: ast.expr, at: int) -> int:
        if isinstance(node, ast.Constant | ast.Name):
            return at
        if isinstance(node, ast.Call):
            return self._call(node, at)
        if isinstance(node, ast.Attribute):
            at = self.expr(node.value, at)
            names = ("__getattr__", "__getattribute__", "__get__", node.attr, *self.names.properties.get(node.attr, ()))
            line_of = ast.Name(node.attr, lineno=node.end_lineno or node.lineno)
            return self.silent(at, line_of, node.attr, names, VIEWED if node.attr in VIEWS else ())
        if isinstance(node, ast.BinOp):
            return self.binary(node, node.op, self.exprs((node.left, node.right), at))
        if isinstance(node, ast.UnaryOp):
            if isinstance(node.op, ast.Not):
                return self.test(node.operand, at)
            at = self.expr(node.operand, at)
            name = UNARY.get(type(node.op), "")
            return self.silent(at, node, name, (f"__{name}__",), (name, "bitwise_not", "positive"))
        if isinstance(node, ast.Compare):
            at = self.expr(node.left, at)
            ends: list[int] = []
            for op, right in zip(node.ops, node.comparators, strict=True):
                if ends:
                    at = self.silent(at, node, "bool", ("__bool__", "__len__"), TRUTH)
                at = self.expr(right, at)
                words = COMPARE.get(type(op), ())
                dunders = [f"__{word}__" for word in (*words, "iter", "next")]
                at = self.silent(at, node, words[0] if words else "is", dunders, words)
                ends.append(at)
            return self.join(*ends) if len(ends) > 1 else at
        if isinstance(node, ast.BoolOp):
            ends = []
            for index, value in enumerate(node.values):
                last = index == len(node.values) - 1
                at = self.expr(value, at) if last else self.test(value, at)
                ends.append(at)
            return self.join(*ends)
        if isinstance(node, ast.IfExp):
            at = self.test(node.test, at)
            return self.join(self.expr(node.body, at), self.expr(node.orelse, at))
        if isinstance(node, ast.Subscript):
            at = self.exprs((node.value, node.slice), at)
            names = ("__getitem__", "__class_getitem__", "__missing__", "__index__", "__hash__")
            return self.silent(at, node, "getitem", names, READ)
        if isinstance(node, tuple(COMPREHENSIONS)):
            return self.comprehension(node, at)
        if isinstance(node, ast.Lambda):
            return self.exprs((*node.args.defaults, *node.args.kw_defaults), at)
        if isinstance(node, ast.Await | ast.YieldFrom):
            return self.wait(node.value, node, at)
        if isinstance(node, ast.Yield):
            return self.pause(node, self.exprs((node.value,), at))
        if isinstance(node, ast.JoinedStr):
            return self.exprs(node.values, at)
        if isinstance(node, ast.FormattedValue):
            at = self.exprs((node.value, node.format_spec), at)
            return self.silent(at, node, "format", ("__format__", "__str__", "__repr__"))
        if isinstance(node, ast.Starred):
            return self.unpack(node, self.expr(node.value, at))
        if isinstance(node, ast.NamedExpr):
            return self.expr(node.value, at)
        if isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                at = self.exprs((key, value), at)
            return self.silent(at, node, "dict", ("__hash__", "__eq__", "keys", "__getitem__"))
        if isinstance(node, ast.Slice):
            return self.exprs((node.lower, node.upper, node.step), at)
        children = [item for item in ast.iter_child_nodes(node) if isinstance(item, ast.expr)]
        return self.exprs(children, at)

    def _call(self, node: ast.Call, at: int, *, pending: bool = False) -> int:
        """Add a call; a ``pending`` one makes a generator or coroutine that runs later."""
        func = node.func
        if isinstance(func, ast.Attribute):
            at = self.expr(func.value, at)
            lookup = ("__getattr__", "__getattribute__", "__get__")
            at = self.silent(at, func, func.attr, lookup)
        else:
            at = self.expr(func, at)
        arguments: list[ast.expr] = [*node.args, *(keyword.value for keyword in node.keywords)]
        arguments.sort(key=lambda argument: (argument.lineno, argument.col_offset))
        at = self.exprs(arguments, at)
        if pending and called_name(func) not in CONSUMERS:
            return at
        return self.call(at, node)

    def binary(self, node: ast.AST, op: ast.operator, at: int, *, inplace: bool = False) -> int:
        word, ops = BINARY[type(op)]
        names = [f"__{word}__", f"__r{word}__"] + [f"__i{word}__"] * inplace
        if isinstance(op, ast.Mod):
            names += ["__str__", "__repr__", "__format__"]
        return self.silent(at, node, word, names, ops)

    def unpack(self, node: ast.expr, at: int) -> int:
        names = self.names.pending(node.value) if isinstance(node, ast.Starred) else set()
        site = Site(
            getattr(node, "lineno", self.line),
            "consume",
            "unpack",
            frozenset({"__iter__", "__next__", "__len__", "keys", "__getitem__"} | names),
            frozenset({"unbind"}),
        )
        return self.passing(at, site)

    def pause(self, node: ast.expr, at: int) -> int:
        """Leave the frame here; another one begins behind."""
        self.flow.leaves.append(at)
        end = self.state()
        self.flow.entries.append((end, node.lineno))
        return end

    def wait(self, value: ast.expr, node: ast.expr, at: int) -> int:
        """Run another generator or coroutine until it ends, with pauses in between."""
        name, at = self._pending(value, at)
        names = frozenset({"__await__", "__iter__", "__next__", "send", "throw"} | self.names.pending(value))
        here = self.loop(at, Site(node.lineno, "loop", name, names, open=not name, callee=name))
        self.paused(here, node.lineno)
        return self.join(here)

    def _pending(self, value: ast.expr, at: int) -> tuple[str, int]:
        """Return the name of the call that makes an iterator, empty for anything else, and the state after it."""
        if isinstance(value, ast.Call):
            return called_name(value.func), self._call(value, at, pending=True)
        return "", self.expr(value, at)

    def iterate(self, iterable: ast.expr, at: int) -> tuple[int, int]:
        """Add a loop's head; return the state before each round and the one after it."""
        name, at = self._pending(iterable, at)
        inner = self.names.pending(iterable)
        if name in CONSUMERS:
            for node in ast.walk(iterable):
                if isinstance(node, ast.expr):
                    inner |= self.names.pending(node)
        names = frozenset({"__iter__", "__next__", "__getitem__", "__aiter__", "__anext__", *inner} - CONSUMERS)
        site = Site(iterable.lineno, "loop", name or "iter", names, frozenset({"unbind"}), callee=_text(iterable))
        head = self.loop(at, site)
        return head, self.join(head)

    def comprehension(self, node: ast.expr, at: int, *, own: bool = False) -> int:
        """Add a comprehension: as a frame of its own, or in line (3.12 and newer)."""
        assert isinstance(node, ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp)
        generators = node.generators
        first = generators[0].iter
        if own:
            after = self.rounds(node, generators, at, own=True)
            if isinstance(node, ast.GeneratorExp):
                self.flow.leaves.append(after)
            return after
        if isinstance(node, ast.GeneratorExp):
            # what reads it runs it, wherever that is
            return self.expr(first, at)
        evaluated = self.expr(first, at)
        site = Site(node.lineno, "call", COMPREHENSIONS[type(node)], frozenset({COMPREHENSIONS[type(node)]}))
        framed = self.step(evaluated, site)
        inlined = self.rounds(node, generators, at, own=False)
        return self.join(framed, inlined)

    def rounds(self, node: ast.expr, generators: list[ast.comprehension], at: int, *, own: bool) -> int:
        assert isinstance(node, ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp)
        heads: list[int] = []
        for index, generator in enumerate(generators):
            if own and index == 0:
                # the outermost iterable was evaluated outside
                names = frozenset({"__iter__", "__next__", "__getitem__"} | self.names.pending(generator.iter))
                head = self.loop(at, Site(generator.iter.lineno, "loop", "iter", names, frozenset({"unbind"})))
                begun = self.join(head)
            else:
                head, begun = self.iterate(generator.iter, at)
            heads.append(head)
            at = self.unpacked(generator.target, begun)
            for condition in generator.ifs:
                at = self.test(condition, at)
                self.skip(at, head)
        if isinstance(node, ast.DictComp):
            at = self.exprs((node.key, node.value), at)
        else:
            at = self.expr(node.elt, at)
        if isinstance(node, ast.GeneratorExp):
            at = self.pause(node, at)
            # a resumed one stands on the line of its element
            self.flow.entries.append((at, node.elt.lineno))
        self.skip(at, heads[-1])
        for inner, outer in zip(heads[1:], heads, strict=False):
            self.skip(inner, outer)
        return self.join(heads[0])

    # -- statements ------------------------------------------------------------------------

    def body(self, nodes: Sequence[ast.stmt], at: int) -> int:
        for node in nodes:
            self.line = node.lineno
            # begun lines are marked, for frames that were open when the recording started
            at = self.join(at)
            at = self.stmt(node, at)
        return at

    def unpacked(self, target: ast.expr, at: int) -> int:
        if isinstance(target, ast.Name):
            return at
        if isinstance(target, ast.Starred):
            return self.unpacked(target.value, at)
        if isinstance(target, ast.Attribute):
            at = self.expr(target.value, at)
            names = ("__setattr__", "__set__", target.attr, *self.names.properties.get(target.attr, ()))
            return self.silent(at, target, "setattr", names)
        if isinstance(target, ast.Subscript):
            at = self.exprs((target.value, target.slice), at)
            return self.silent(at, target, "setitem", ("__setitem__", "__index__"), WRITE)
        if isinstance(target, ast.Tuple | ast.List):
            at = self.unpack(target, at)
            for element in target.elts:
                at = self.unpacked(element, at)
        return at

    def stmt(self, node: ast.stmt, at: int) -> int:
        if isinstance(node, ast.Expr):
            return self.expr(node.value, at)
        if isinstance(node, ast.Assign):
            at = self.expr(node.value, at)
            for target in node.targets:
                at = self.unpacked(target, at)
            return at
        if isinstance(node, ast.AugAssign):
            loaded = node.target
            if isinstance(loaded, ast.Attribute):
                at = self.expr(loaded, at)
            elif isinstance(loaded, ast.Subscript):
                at = self.exprs((loaded.value, loaded.slice), at)
                at = self.silent(at, loaded, "getitem", ("__getitem__", "__missing__"), READ)
            at = self.binary(node, node.op, self.expr(node.value, at), inplace=True)
            if isinstance(loaded, ast.Attribute):
                return self.silent(at, node, "setattr", ("__setattr__", "__set__", loaded.attr))
            if isinstance(loaded, ast.Subscript):
                return self.silent(at, node, "setitem", ("__setitem__",), WRITE)
            return at
        if isinstance(node, ast.AnnAssign):
            if node.value is not None:
                at = self.unpacked(node.target, self.expr(node.value, at))
            if isinstance(self.function.node, ast.ClassDef | ast.Module):
                return self.join(at, self.expr(node.annotation, at))
            return at
        if isinstance(node, ast.Return):
            at = self.exprs((node.value,), at)
            self.finish(at)
            return self.state()
        if isinstance(node, ast.Raise):
            at = self.exprs((node.exc, node.cause), at)
            # raising a class makes an instance
            at = self.silent(at, node, "raise", ("__init__", "__new__"))
            self.raises(at)
            return self.state()
        if isinstance(node, ast.Assert):
            tested = self.test(node.test, at)
            self.raises(self.exprs((node.msg,), tested))
            return self.join(at, tested)
        if isinstance(node, ast.If):
            return self.branch(node, at)
        if isinstance(node, ast.For | ast.AsyncFor):
            head, begun = self.iterate(node.iter, at)
            if isinstance(node, ast.AsyncFor):
                self.paused(head, node.iter.lineno)
            after = self.state()
            self.loops.append(LoopFlow(head, after))
            self.skip(self.body(node.body, self.unpacked(node.target, begun)), head)
            self.loops.pop()
            self.skip(self.body(node.orelse, head), after)
            return self.join(after)
        if isinstance(node, ast.While):
            head = self.join(at)
            after = self.state()
            tested = self.test(node.test, head)
            self.loops.append(LoopFlow(head, after))
            self.skip(self.body(node.body, tested), head)
            self.loops.pop()
            if not (isinstance(node.test, ast.Constant) and node.test.value):  # may end
                self.skip(self.body(node.orelse, tested), after)
            return self.join(after)
        if isinstance(node, ast.Break | ast.Continue):
            if self.loops:
                loop = self.loops[-1]
                self.jump(at, loop.after if isinstance(node, ast.Break) else loop.again)
            return self.state()
        if isinstance(node, ast.With | ast.AsyncWith):
            return self.with_(node, at)
        if isinstance(node, ast.Try) or type(node).__name__ == "TryStar":
            return self.try_(node, at)
        if isinstance(node, ast.Match):
            return self.match(node, at)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            at = self.exprs((*node.decorator_list, *node.args.defaults, *node.args.kw_defaults), at)
            given = (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
            annotated = self.exprs((*(item.annotation for item in given), node.returns), at)
            return self.decorated(node, self.join(at, annotated))
        if isinstance(node, ast.ClassDef):
            at = self.exprs((*node.decorator_list, *node.bases, *(keyword.value for keyword in node.keywords)), at)
            line = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            at = self.step(at, Site(line, "call", "__build_class__", frozenset({"__build_class__"})))
            return self.decorated(node, at)
        if isinstance(node, ast.Delete):
            for target in node.targets:
                if isinstance(target, ast.Attribute | ast.Subscript):
                    at = self.expr(target.value, at)
                    if isinstance(target, ast.Subscript):
                        at = self.expr(target.slice, at)
                    at = self.silent(at, target, "del", ("__delitem__", "__delattr__"))
            return self.silent(at, node, "del", ("__del__",))
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = ("_find_and_load", "_handle_fromlist", "__getattr__", "__import__")
            return self.silent(at, node, "import", names)
        return at

    def jump(self, at: int, to: int) -> None:
        """Go to a loop's head or end, by way of the ``finally`` blocks in between."""
        self.skip(at, to)
        if self.handlers:
            for handler in self.handlers[-1]:
                self.skip(at, handler)

    def finish(self, at: int) -> None:
        self.raises(at)
        if self.handlers:
            self.skip(at, self.flow.exit)

    def branch(self, node: ast.If, at: int) -> int:
        at = self.test(node.test, at)
        if isinstance(node.test, ast.Constant):
            return self.body(node.body if node.test.value else node.orelse, at)
        return self.join(self.body(node.body, at), self.body(node.orelse, at))

    def decorated(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef, at: int) -> int:
        for decorator in reversed(node.decorator_list):
            name = called_name(decorator.func if isinstance(decorator, ast.Call) else decorator)
            names = {name, "__init__", "__new__", "__call__", "decorator", "wrap", "wrapper"}
            site = Site(decorator.lineno, "consume", name, frozenset(names - {""}), open=True)
            at = self.passing(at, site)
        return at

    def with_(self, node: ast.With | ast.AsyncWith, at: int) -> int:
        waits = isinstance(node, ast.AsyncWith)

        def around(at: int, item: ast.withitem, name: str) -> int:
            names = (f"__{name}__", f"__a{name}__")
            at = self.silent(at, item.context_expr, name, names)
            if waits:
                self.paused(at, item.context_expr.lineno)
                at = self.silent(at, item.context_expr, name, names)
            return at

        for item in node.items:
            at = self.expr(item.context_expr, at)
            at = around(at, item, "enter")
            if item.optional_vars is not None:
                at = self.unpacked(item.optional_vars, at)
        leaving = self.state()
        self.handlers.append([leaving])
        end = self.body(node.body, self.join(at))
        self.handlers.pop()
        self.skip(end, leaving)
        at = leaving
        for item in reversed(node.items):
            at = around(at, item, "exit")
        # an exception or a return inside goes on behind __exit__
        self.onward(at)
        return at

    def onward(self, at: int) -> None:
        self.raises(at)
        for loop in self.loops[-1:]:
            self.skip(at, loop.after)
            self.skip(at, loop.again)

    def try_(self, node: ast.stmt, at: int) -> int:
        assert isinstance(node, ast.Try) or type(node).__name__ == "TryStar"
        handlers: list[ast.ExceptHandler] = node.handlers  # type: ignore[attr-defined]
        final: list[ast.stmt] = node.finalbody  # type: ignore[attr-defined]
        caught = self.state()
        ending = self.state()
        outer = [ending] if final else (self.handlers[-1] if self.handlers else [])
        self.handlers.append([caught, *([ending] if final else [])])
        done = self.body(node.body, self.join(at))  # type: ignore[attr-defined]
        self.handlers.pop()
        if final:
            self.handlers.append(outer)
        ends = [self.body(node.orelse, done)]  # type: ignore[attr-defined]
        for handler in handlers:
            if handler.type is not None:
                caught = self.expr(handler.type, caught)
            ends.append(self.body(handler.body, self.join(caught)))
        if final:
            self.handlers.pop()
        # what no handler takes goes on
        for target in outer or [self.flow.exit]:
            self.skip(caught, target)
        if not final:
            return self.join(*ends)
        for end in ends:
            self.skip(end, ending)
        at = self.body(final, ending)
        self.onward(at)
        return self.join(at)

    def match(self, node: ast.Match, at: int) -> int:
        at = self.expr(node.subject, at)
        ends = []
        for case in node.cases:
            for item in ast.walk(case.pattern):
                if isinstance(item, ast.MatchValue):
                    at = self.expr(item.value, at)
            names = ("__eq__", "__getattr__", "__instancecheck__", "__len__", "__getitem__")
            at = self.silent(at, case.pattern, "match", names, ("eq", *TRUTH))
            inside = self.test(case.guard, at) if case.guard is not None else at
            ends.append(self.body(case.body, inside))
            at = self.join(at, inside) if case.guard is not None else at
        return self.join(at, *ends)
