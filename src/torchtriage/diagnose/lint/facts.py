"""What rules look at: one module's calls, loops, functions and values, each with its context.

The walker (``walk/``) writes these once per file; a rule picks the few it is about from the
indexes and never walks a tree of a whole file itself.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

from torchtriage.diagnose.lint.abstract_values import CPU, UNKNOWN, Value
from torchtriage.diagnose.lint.settings import Settings
from torchtriage.diagnose.lint.syntax import path_of
from torchtriage.diagnose.lint.torch_names import HOOK

_Node = TypeVar("_Node", bound=ast.AST)


@dataclass(eq=False, slots=True)
class Class:
    """A class of the file: what it derives from and what is known of ``self``'s attributes.

    ``fields`` : names that its class body gives values, in order, as a dataclass takes them.
    """

    name: str
    node: ast.ClassDef
    bases: tuple[str, ...]
    is_module: bool
    is_lightning: bool
    attributes: dict[str, Value] = field(default_factory=dict)
    methods: dict[str, SourceFunction] = field(default_factory=dict)
    parents: tuple[Class, ...] = ()
    children: list[Class] = field(default_factory=list)
    fields: list[str] = field(default_factory=list)

    def attribute(self, name: str) -> Value | None:
        """Return what an attribute of its objects is, None when nothing is known."""
        for known in self._family():
            if name in known.attributes:
                return known.attributes[name]
        return None

    def method(self, name: str) -> SourceFunction | None:
        """Return its own method, or the one it inherits."""
        if name in self.methods:
            return self.methods[name]
        return next((found for parent in self.parents if (found := parent.method(name)) is not None), None)

    def runs(self, name: str) -> tuple[SourceFunction, ...]:
        """Return what a call of ``self.name`` may run: its own method, and those that replace it."""
        own = self.method(name)
        over = [known.methods[name] for known in self._below() if name in known.methods]
        return tuple(dict.fromkeys([own, *over] if own is not None else over))

    def _below(self) -> Iterator[Class]:
        for child in self.children:
            yield child
            yield from child._below()

    def _family(self) -> Iterator[Class]:
        yield self
        for parent in self.parents:
            yield from parent._family()
        yield from self._below()


@dataclass(eq=False, slots=True)
class SourceFunction:
    """A function of the file.

    ``steps`` : its body, outside its own loops of steps, or a function that it calls there, runs a
    backward pass or an optimizer's step; ``runs_module`` : a module; ``works`` : computes with
    tensors. ``serves`` : it answers one request. ``loads`` : it makes one sample or batch of a data
    set. ``given`` : what its first caller passes for each parameter. ``asked`` : the calls of a
    parameter, by its name. ``holds`` : a loop of training is in it, or in a function that it calls.
    ``yields``, ``turns`` : what a generator gives, and the loops in which it does. ``fires`` : the
    parameter that names the methods it calls by ``getattr``, with the text before and after it.

    What its callers say, at any depth: ``called_hot`` : called in each step. ``called_in_loop`` : in
    any loop. ``called_again`` : in each turn of a loop that does more than set up. ``offered`` : a
    library offers it, or what calls it, for tensors: it may run in somebody's step.
    ``called_without_grad`` : by all of them without autograd. ``compiled_by_caller`` : in compiled code.
    """

    name: str
    qualname: str
    node: ast.FunctionDef | ast.AsyncFunctionDef
    owner: Class | None
    outer: SourceFunction | None
    decorators: tuple[str, ...]
    no_grad: bool
    compiled: bool = False
    serves: bool = False
    loads: bool = False
    steps: bool = False
    runs_module: bool = False
    works: bool = False
    holds: bool = False
    given: dict[str, Value] = field(default_factory=dict)
    asked: dict[str, list[SourceCall]] = field(default_factory=dict)
    called_hot: bool = False
    called_in_loop: bool = False
    called_again: bool = False
    offered: bool = False
    called_without_grad: bool = False
    compiled_by_caller: bool = False
    has_backward: bool = False
    is_generator: bool = False
    yields: Value = UNKNOWN
    turns: list[SourceLoop] = field(default_factory=list)
    returns: list[tuple[ast.Return, Value]] = field(default_factory=list)
    events: list[SourceEvent] = field(default_factory=list)
    fires: tuple[str, str, str] | None = None

    @property
    def places(self) -> list[str]:
        """The parameters that a call fills by their place, ``self`` left out."""
        names = [arg.arg for arg in (*self.node.args.posonlyargs, *self.node.args.args)]
        return names[1:] if self.owner is not None and "staticmethod" not in self.decorators else names

    def given_by(self, call: ast.Call) -> dict[str, ast.expr]:
        """Return what a call of this function gives its parameters, by name; ``*`` and ``**`` may give more."""
        given = dict(zip(self.places, call.args, strict=False))
        return given | {item.arg: item.value for item in call.keywords if item.arg is not None}

    @property
    def in_module(self) -> bool:
        """Whether it is part of a module's own code: whoever uses that module says where it lives, and what trains."""
        return self.owner is not None and self.owner.is_module

    @property
    def sets_up(self) -> bool:
        """Whether it prepares things, by its name."""
        return _SETUP.search(self.name) is not None


_SETUP = re.compile(r"^_*(init|setup|set_up|make|build|create|load|prepare|generate|synth\w*|read)(_|$)|^__init__$")


@dataclass(eq=False, slots=True)
class SourceLoop:
    """A ``for``, ``while`` or comprehension; ``steps`` once it is known to be a loop of steps.

    Facts count what its own body does, nested loops left out. ``works`` : computes with tensors.
    ``drives`` : each of its turns is taken by a loop of steps, which asks this generator for more.
    ``outermost`` : the program's own loop, of steps that only compute. ``wraps`` : a loop of training
    runs in each of its turns, which are epochs then, whatever else they do. ``rounds`` : it goes over
    epochs, settings or models by its name.
    """

    node: ast.For | ast.AsyncFor | ast.While | ast.comprehension
    context: Context
    iterates: Value = UNKNOWN
    over: str = ""
    targets: frozenset[str] = frozenset()
    backward: bool = False
    optimizes: bool = False
    runs_module: bool = False
    works: bool = False
    times: bool = False
    drives: bool = False
    outermost: bool = False
    wraps: bool = False
    rounds: bool = False
    calls: set[SourceFunction] = field(default_factory=set)
    assigned: dict[str, int] = field(default_factory=dict)
    cleared: set[str] = field(default_factory=set)
    n_constant: int | None = None

    @property
    def outer(self) -> SourceLoop | None:
        """The loop around it in its function."""
        return self.context.loop

    @property
    def function(self) -> SourceFunction | None:
        """The function that it stands in."""
        return self.context.function

    @property
    def comprehension(self) -> bool:
        """Whether it is no statement of its own."""
        return isinstance(self.node, ast.comprehension)

    @property
    def place(self) -> ast.expr | ast.stmt:
        """What stands for it in a report: the statement, or what a comprehension goes over."""
        return self.node.iter if isinstance(self.node, ast.comprehension) else self.node

    @property
    def counter(self) -> str:
        """The name that counts its turns, ``i`` of ``for i in range(n)``; empty where none does."""
        node = self.node
        if isinstance(node, ast.While) or not isinstance(node.target, ast.Name) or not isinstance(node.iter, ast.Call):
            return ""
        return node.target.id if path_of(node.iter.func) == "range" else ""

    @property
    def trains(self) -> bool:
        """Whether its own body trains, itself or through a function of the file."""
        return self.backward or self.optimizes or any(call.steps for call in self.calls)

    @property
    def over_loader(self) -> bool:
        """Whether it goes over the batches of a loader."""
        return self.iterates.kind == "loader"

    @property
    def steps(self) -> bool:
        """Whether one turn of it is a step of training or inference."""
        if self.comprehension or self.short:
            return False
        if self.trains or self.over_loader:
            return True
        if self.wraps or self.rounds:
            return False
        if self.runs_module or self.drives or self.outermost:
            return True
        return any(call.runs_module for call in self.calls)

    @property
    def short(self) -> bool:
        """Whether it turns too seldom to be a loop of steps."""
        return self.turns_below(3)

    def turns_below(self, n: int) -> bool:
        """Return whether it is known to turn fewer times than that."""
        return self.n_constant is not None and self.n_constant < n

    def around(self) -> Iterator[SourceLoop]:
        """Yield the loops around it in its function, innermost first."""
        if self.outer is not None:
            yield self.outer
            yield from self.outer.around()


@dataclass(eq=False, slots=True)
class Context:
    """Where a statement stands.

    ``rare`` : behind a condition that does not hold in every step, or on a way out.
    ``aside`` : the same for a condition outside the loop (``if args.debug:``).
    """

    function: SourceFunction | None = None
    loop: SourceLoop | None = None
    rare: bool = False
    aside: bool = False
    no_grad: bool = False
    modulo: bool = False

    def but(self, **changes: Any) -> Context:
        """Return the context with other fields."""
        made = Context(self.function, self.loop, self.rare, self.aside, self.no_grad, self.modulo)
        for name, value in changes.items():
            setattr(made, name, value)
        return made

    def loops(self) -> Iterator[SourceLoop]:
        """Yield the loops around it in its function, innermost first."""
        if self.loop is not None:
            yield self.loop
            yield from self.loop.around()

    @property
    def statement_loop(self) -> SourceLoop | None:
        """The innermost loop around it that is no comprehension."""
        return next((loop for loop in self.loops() if not loop.comprehension), None)

    @property
    def step_loop(self) -> SourceLoop | None:
        """The innermost loop of steps around it."""
        return next((loop for loop in self.loops() if loop.steps), None)

    @property
    def owner(self) -> Class | None:
        """The class whose method it stands in."""
        return self.function.owner if self.function is not None else None

    @property
    def in_module(self) -> bool:
        """Whether it is part of a module's own code."""
        return self.owner is not None and self.owner.is_module

    @property
    def seldom(self) -> bool:
        """Whether a condition keeps it from running in every step."""
        return self.rare or self.aside

    @property
    def loads(self) -> bool:
        """Whether it runs for each sample of a data set, where a loader's workers run."""
        return self.function is not None and self.function.loads

    @property
    def hot(self) -> bool:
        """Whether it runs in every step, in the process that takes the steps."""
        if self.seldom or self.loads:
            return False
        return self.step_loop is not None or self.in_step_function

    @property
    def often(self) -> str:
        """How often it runs, where that is often: in every step, or in each call of what a library offers for steps."""
        if self.hot:
            return "in every step"
        offered = self.function is not None and self.function.offered
        return "in each call" if offered and not (self.seldom or self.loads) else ""

    @property
    def trains(self) -> bool:
        """Whether it stands in a step of training."""
        if (loop := self.step_loop) is not None:
            return loop.trains
        return self.function is not None and (self.function.has_backward or self.function.name == "training_step")

    @property
    def repeated(self) -> bool:
        """Whether it runs in every step, or in every turn of another loop: a round, a fold, an episode."""
        if self.seldom or self.loads:
            return False
        if self.step_loop is not None or self.in_step_function:
            return True
        if self.function is not None and (self.function.called_again or self.function.sets_up):
            return self.function.called_again
        return any(not loop.comprehension and not loop.short for loop in self.loops())

    @property
    def in_step_function(self) -> bool:
        """Whether its function is (part of) one step."""
        return self.function is not None and (
            self.function.called_hot or self.function.serves or is_step(self.function) or self.function.compiled
        )


def is_step(function: SourceFunction) -> bool:
    """Return whether a function is one step by its name and class."""
    owner = function.owner
    if owner is None:
        return False
    if function.name == "forward":
        return owner.is_module
    if function.name in ("training_step", "validation_step", "predict_step", "test_step"):
        return owner.is_lightning or function.name == "training_step"
    if HOOK.match(function.name):
        return True
    return function.name == "compute_loss" and any(base.endswith("Trainer") for base in owner.bases)


@dataclass(eq=False, slots=True)
class SourceCall:
    """One call. ``name`` is the full dotted name where imports show it, ``attr`` the last part.

    ``user`` : the call that takes this one's result directly, as receiver or argument. ``callee`` :
    the function of the file that is called, ``callees`` : all that it may be. ``target`` : the name
    that it is assigned to; ``stored`` : assigned to an attribute or an entry.
    """

    node: ast.Call
    name: str
    attr: str
    receiver: Value
    arguments: tuple[Value, ...]
    value: Value
    context: Context
    target: str = ""
    stored: bool = False
    user: SourceCall | None = None
    callees: tuple[SourceFunction, ...] = ()

    @property
    def runs_module(self) -> bool:
        """Whether it runs a model, or a layer, on tensors."""
        return self.receiver.kind == "module" and self.value.kind == "tensor"

    @property
    def callee(self) -> SourceFunction | None:
        """The function of the file that is called."""
        return self.callees[0] if self.callees else None

    def users(self) -> Iterator[SourceCall]:
        """Yield the calls that take its result, one inside another, innermost first."""
        if self.user is not None:
            yield self.user
            yield from self.user.users()

    @property
    def owner(self) -> ast.expr | None:
        """The receiver of a method call."""
        return self.node.func.value if isinstance(self.node.func, ast.Attribute) else None


@dataclass(eq=False, slots=True)
class Test:
    """A condition whose truth is read: of ``if``, ``while``, ``assert``, ``not``, ``a if b``."""

    node: ast.expr
    value: Value
    context: Context
    kind: str


@dataclass(eq=False, slots=True)
class Assign:
    """``target = value``, ``target += value``, or ``target.append(value)`` (``how``).

    ``how`` is ``unpack`` for each name of ``a, b = value``, whose own value is not known then.
    """

    node: ast.stmt | ast.Call
    how: str
    target: str
    value: Value
    expression: ast.expr
    context: Context


@dataclass(eq=False, slots=True)
class SourceEvent:
    """What timing rules need of a function, in order: clock reads, device work, waits."""

    kind: str
    node: ast.expr
    name: str
    context: Context


@dataclass(eq=False)
class Module:
    """Everything the walker found in one file.

    ``edges`` : where a function of the file runs, for each call and each iteration of it.
    ``is_program`` : it runs something by itself, and is not only there for others to import. ``alone`` : it is no
    part of a package, by its imports. ``others`` : the other files of its project, where they were asked for.
    """

    path: str
    text: str
    tree: ast.Module
    uses_device: bool
    calls: list[SourceCall] = field(default_factory=list)
    named: dict[str, list[SourceCall]] = field(default_factory=lambda: defaultdict(list))
    methods: dict[str, list[SourceCall]] = field(default_factory=lambda: defaultdict(list))
    tests: list[Test] = field(default_factory=list)
    formats: list[Test] = field(default_factory=list)
    masks: list[Test] = field(default_factory=list)
    searches: list[Test] = field(default_factory=list)
    assigns: list[Assign] = field(default_factory=list)
    loops: list[SourceLoop] = field(default_factory=list)
    withs: list[tuple[ast.withitem, SourceCall, Context, ast.With | ast.AsyncWith]] = field(default_factory=list)
    environ: list[tuple[ast.stmt | ast.Call, str, ast.expr, Context]] = field(default_factory=list)
    functions: list[SourceFunction] = field(default_factory=list)
    classes: dict[str, Class] = field(default_factory=dict)
    values: dict[ast.expr, Value] = field(default_factory=dict)
    elements: dict[ast.comprehension, ast.expr] = field(default_factory=dict)
    edges: list[tuple[Context, SourceFunction]] = field(default_factory=list)
    is_program: bool = False
    alone: bool = False
    module_events: list[SourceEvent] = field(default_factory=list)
    aliases: dict[str, str] = field(default_factory=dict)
    others: tuple[Module, ...] = ()
    _rows: list[str] | None = None

    @cached_property
    def on_cpu(self) -> bool:
        """Whether it is a program for the CPU: it builds its module and never names a device."""
        if self.uses_device:
            return False
        if (
            self.is_program
            and "__name__" in self.text
            and (
                _BUILDS_LAYER.search(self.text)
                or any(_MODEL.search(match[1], 1) for match in _BUILDS.finditer(self.text))
            )
        ):
            return True
        return any(
            call.value.kind == "module" and call.value.device == CPU and not call.context.in_module
            for call in self.calls
        )

    @cached_property
    def trains(self) -> bool:
        """Whether anything here takes gradients."""
        return (
            any(event.kind == "backward" for event in self.module_events)
            or any(function.has_backward for function in self.functions)
            or "autograd.grad" in self.text
        )

    def repeats(self, context: Context) -> bool:
        """Return whether code runs again and again; of what others import only steps are known."""
        return context.repeated if self.takes_steps else context.hot

    @cached_property
    def takes_steps(self) -> bool:
        """Whether it is a program with a loop of steps, or with steps that a framework or a server runs."""
        return self.is_program and (
            any(loop.steps for loop in self.loops)
            or any(function.serves or (is_step(function) and function.name != "forward") for function in self.functions)
        )

    @cached_property
    def parents(self) -> dict[ast.AST, ast.AST]:
        """The node around each node; a rule asks for it once the text has what it looks for."""
        found: dict[ast.AST, ast.AST] = {}
        pending: list[ast.AST] = [self.tree]
        for node in pending:
            parts = list(ast.iter_child_nodes(node))
            found |= dict.fromkeys(parts, node)
            pending += parts
        return found

    def outward(self, node: ast.AST | None) -> Iterator[ast.AST]:
        """Yield what is around a node, innermost first."""
        while node in self.parents:
            node = self.parents[node]
            yield node

    def around(self, node: ast.AST | None, *kinds: type[_Node]) -> _Node | None:
        """Return the nearest node of these kinds around a node."""
        return next((outer for outer in self.outward(node) if isinstance(outer, kinds)), None)

    def scope(self, node: ast.AST) -> ast.AST:
        """Return the function around a node, or the whole file."""
        return self.around(node, ast.FunctionDef, ast.AsyncFunctionDef) or self.tree

    @cached_property
    def _names(self) -> dict[ast.AST, dict[str, list[ast.Name]]]:
        known: dict[ast.AST, dict[str, list[ast.Name]]] = {}
        for node in self.parents:
            if isinstance(node, ast.Name):
                known.setdefault(self.scope(node), {}).setdefault(node.id, []).append(node)
        return known

    def names(self, name: str, scope: ast.AST) -> list[ast.Name]:
        """Return where a function names a variable."""
        return self._names.get(scope, {}).get(name, [])

    def reads(self, name: str, scope: ast.AST) -> list[ast.Name]:
        """Return where a function reads a variable."""
        return [node for node in self.names(name, scope) if isinstance(node.ctx, ast.Load)]

    def stores(self, name: str, scope: ast.AST) -> list[ast.Name]:
        """Return where a function gives a variable a value."""
        return [node for node in self.names(name, scope) if isinstance(node.ctx, ast.Store)]

    def made_of(self, node: ast.expr) -> ast.expr:
        """Return what a variable stands for that its function assigns once, anything else as it is."""
        if not isinstance(node, ast.Name):
            return node
        stores = self.stores(node.id, self.scope(node))
        made = self.parents.get(stores[0]) if len(stores) == 1 else None
        return made.value if isinstance(made, ast.Assign) and stores[0] in made.targets else node

    def uses(self, node: ast.expr) -> list[ast.expr]:
        """Return where a result is read: the place itself, or the reads of the variable that it is assigned to."""
        made = self.parents.get(node)
        if not isinstance(made, ast.Assign) or len(made.targets) != 1 or not isinstance(made.targets[0], ast.Name):
            return [node]
        name, scope = made.targets[0].id, self.scope(node)
        return [*self.reads(name, scope)] if len(self.stores(name, scope)) == 1 else [node]

    @cached_property
    def settings(self) -> Settings:
        """What settings are when nobody changes them."""
        return Settings(self.tree)

    def constant(self, node: ast.expr | None, context: Context) -> object:
        """Return the constant that an expression is by itself or by its defaults, ``...`` when unknown."""
        return self.settings.value(node, context.function.node if context.function is not None else None)

    def release(self) -> None:
        """Break the circles between facts, so that a file's tree goes when its last user does."""
        for function in self.functions:
            function.events.clear()
            function.returns.clear()
            function.asked.clear()
            function.given.clear()
        for known in self.classes.values():
            known.methods.clear()
            known.attributes.clear()
            known.children.clear()
        self.edges.clear()

    @cached_property
    def names_cuda(self) -> bool:
        """Whether its text puts something on a CUDA device."""
        return any(word in self.text for word in ('"cuda', "'cuda", ".cuda("))

    def turn(self, loop: SourceLoop) -> list[ast.AST]:
        """Return what runs in each turn of a loop: its statements, or the element of a comprehension."""
        if not isinstance(loop.node, ast.comprehension):
            return list(loop.node.body)
        return [self.elements[loop.node]] if loop.node in self.elements else []

    def nodes(self, loop: SourceLoop) -> list[ast.AST]:
        """Return all the syntax that runs in each turn of a loop."""
        return [node for part in self.turn(loop) for node in ast.walk(part)]

    def passed(self, function: SourceFunction | None, name: str) -> Iterator[tuple[ast.expr, Context]]:
        """Yield what the calls of a function give for a parameter that has a place, and where."""
        for call in self.calls if function is not None and name in function.places else ():
            if function in call.callees and (given := function.given_by(call.node).get(name)) is not None:
                yield given, call.context

    def made_in(self, function: SourceFunction | None, name: str) -> list[ast.expr]:
        """Return what a function assigns to a variable."""
        return [item.expression for item in self.assigns_to(name) if item.context.function is function]

    def assigns_to(self, target: str) -> list[Assign]:
        """Return the assignments to a variable or an attribute, in order of their place."""
        return self._assigns.get(target, [])

    @cached_property
    def _assigns(self) -> dict[str, list[Assign]]:
        known: dict[str, list[Assign]] = {}
        for assign in self.assigns:
            known.setdefault(assign.target, []).append(assign)
        return known

    @cached_property
    def calls_by_node(self) -> dict[ast.AST, SourceCall]:
        """The calls by their syntax."""
        return {call.node: call for call in self.calls}

    @cached_property
    def calls_by_function(self) -> dict[SourceFunction | None, list[SourceCall]]:
        """The calls in the code of each function, in order of their place."""
        found: dict[SourceFunction | None, list[SourceCall]] = defaultdict(list)
        for call in self.calls:
            found[call.context.function].append(call)
        return found

    def reached(self, node: ast.AST) -> list[SourceFunction]:
        """Return the functions of the file that a piece of code leads to, at any depth."""
        found: list[SourceFunction] = []
        waiting = [node]
        while waiting:
            inside = set(ast.walk(waiting.pop()))
            new = {callee: None for call in self.calls if call.node in inside for callee in call.callees}
            waiting += [callee.node for callee in new if callee not in found]
            found += [callee for callee in new if callee not in found]
        return found

    def body(self, function: SourceFunction | None) -> ast.Module | ast.FunctionDef | ast.AsyncFunctionDef:
        """Return a function's syntax, the whole file's outside functions."""
        return self.tree if function is None else function.node

    def text_of(self, function: SourceFunction | None) -> str:
        """Return the text of a function, the whole file's outside functions."""
        if function is None:
            return self.text
        if self._rows is None:
            self._rows = self.text.split("\n")
        return "\n".join(self._rows[function.node.lineno - 1 : function.node.end_lineno])

    def called(self, *names: str) -> list[SourceCall]:
        """Return the calls of these full names, in order of their place."""
        return [call for name in names for call in self.named.get(name, ())]

    def sent(self, *names: str) -> list[SourceCall]:
        """Return the calls of methods with these names."""
        return [call for name in names for call in self.methods.get(name, ())]

    def value(self, node: ast.expr) -> Value:
        """Return what is known of an expression."""
        return self.values.get(node, UNKNOWN)

    def name_of(self, node: ast.expr) -> str:
        """Return the full dotted name of an expression, empty when it has none."""
        root, dot, rest = path_of(node).partition(".")
        return self.aliases.get(root, root) + dot + rest

    def name_called(self, node: ast.AST | None) -> str:
        """Return the full dotted name of what an expression calls, empty when it has none or calls nothing."""
        return self.name_of(node.func) if isinstance(node, ast.Call) else ""


# the letter or the literal comes first, so that the search skips to it
_BUILDS_LAYER = re.compile(r"nn\.(?<!\wnn\.)(?<!class nn\.)[A-Z]\w+\(")
_BUILDS = re.compile(r"([A-Z](?<!\w.)(?<!class .)\w+)\(")
_MODEL = re.compile(r"(?:Model|Net)$|For[A-Z]\w")
