"""What is known at one point of a file: its names, where it stands, and the facts found so far."""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from torchtriage.diagnose.lint import torch_names
from torchtriage.diagnose.lint.abstract_values import HOST, UNKNOWN, Value
from torchtriage.diagnose.lint.conditions import is_rare, is_switch, leaves
from torchtriage.diagnose.lint.facts import Class, Context, Module, SourceCall, SourceEvent, SourceFunction
from torchtriage.diagnose.lint.syntax import path_of
from torchtriage.diagnose.lint.walk.prefilter import Relevance

Env = dict[str, Value]

_DEVICE_WORDS = ("cuda", "self.device", "device_map", "ightning", "fabric")
# a dtype is no device, a Trainer of the file's own moves nothing by itself, and physics has accelerations
_DEVICE_USES = re.compile(
    r"\.to\((?!dtype\b|torch\.\w+\)|[\w.]*dtype\))|accelerat(?:or|e\b)|DataParallel|nn\.parallel|torch\.distributed"
    r"|Trainer\((?<!class Trainer\()"
)
_OWN_TRAINER = re.compile(r"^class Trainer\b", re.MULTILINE)
# x.device names none: it follows another tensor. Each part begins with its letters and looks back
# from there: nine times faster than to look back at every place
_DEVICE = re.compile(
    r"device(?<![.\w]device)\b(?!=\w+(\.\w+)*\.device)"
    r"|mps(?<!\w{4})\b|xpu(?<!\w{4})\b|hip(?<!\w{4})\b"
)
# DEVICE = torch.device("cpu"), and nothing else
_CPU_NAME = re.compile(r"""^ *(\w+) = (?:torch\.device\()?["']cpu["']\)?\r?$""", re.MULTILINE)

_SAID_OFF = re.compile(r"no_?grad|inference_?mode", re.IGNORECASE)
_GRAD_OFF = re.compile(r"\bno_grad\(|inference_mode\(|set_grad_enabled\(False")

# takes steps of training itself: what a step is does not depend on who imports the file
_TRAINS = re.compile(r"^[^#\n]*\.backward\(", re.MULTILINE)

# asyncio.run(main()), fire.Fire(main), uvicorn.run(app)
_STARTS = re.compile(r"(^|\.)(run|run_until_complete|spawn|Fire|launch|notebook_launcher|start_processes)$")


def _is_program(tree: ast.Module) -> bool:
    """Return whether a file runs something by itself: loops, calls, answers, ``if __name__ == ...``."""
    imported = {
        (name.asname or name.name).partition(".")[0]
        for node in tree.body
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in node.names
    }

    def runs(node: ast.stmt) -> bool:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            said = [item.func if isinstance(item, ast.Call) else item for item in node.decorator_list]
            return any(torch_names.ROUTE.search(path_of(item)) for item in said)
        if isinstance(node, ast.If):
            return "__name__" in ast.dump(node.test) or any(map(runs, node.body))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            # torch.set_printoptions() is a setting of a library's module
            path = path_of(node.value.func)
            root = path.partition(".")[0]
            if root in imported:
                return _STARTS.search(path) is not None and bool(node.value.args)
            return not hasattr(builtins, root)
        return isinstance(node, ast.For | ast.While | ast.With)

    return any(map(runs, tree.body))


def _trains(text: str) -> bool:
    """Return whether a text takes steps of training itself."""
    return ".backward(" in text and "step(" in text and _TRAINS.search(text) is not None


def _uses_device(text: str) -> bool:
    """Return whether a text names a device, moves something, or hands it to a library that does."""
    for name in _CPU_NAME.findall(text) if "cpu" in text else ():
        text = re.sub(rf"\.to\({name}\)|\bdevice={name}\b|^ *{name} = .*$", "", text, flags=re.MULTILINE)
    if any(word in text for word in _DEVICE_WORDS) or _DEVICE.search(text):
        return True
    own = _OWN_TRAINER.search(text) is not None
    return any(not (own and use[0] == "Trainer(") for use in _DEVICE_USES.finditer(text))


class Walker:
    """The state of the pass. ``expressions`` and ``statements`` : who reads which type of node.

    ``unread`` : functions that no call has led to yet, each with the names around it; ``speaking``
    : those that hold anything rules are about. ``is_program`` : the file runs something by itself.
    """

    def __init__(
        self,
        tree: ast.Module,
        text: str,
        path: str,
        expressions: Mapping[type, ReadExpression],
        statements: Mapping[type, ReadStatement],
    ) -> None:
        self.module = Module(path, text, tree, _uses_device(text))
        self.relevance = Relevance(text)
        self.module.alone = self.relevance.alone
        self.aliases = self.module.aliases
        self.by_name: dict[str, SourceFunction] = {}
        self.unread: dict[SourceFunction, list[Env]] = {}
        self.speaking: set[SourceFunction] = set()
        self.is_program = _is_program(tree) or _trains(text)
        self.depth = 0
        self.scopes: list[Env] = [{}]
        self.context = Context()
        self.user: SourceCall | None = None
        self._expressions, self._statements = expressions, statements

    # -- reading -------------------------------------------------------------------------------

    def eval(self, node: ast.expr) -> Value:
        """Return what an expression is, and note every call and condition in it."""
        if type(node) is ast.Constant:
            return HOST
        read = self._expressions.get(type(node))
        if read is not None:
            value = read(self, node)
        else:
            value = UNKNOWN
            for child in ast.iter_child_nodes(node):
                if isinstance(child, ast.expr):
                    self.eval(child)
        if value is not UNKNOWN and value is not HOST:
            self.module.values[node] = value
        return value

    def block(self, body: Iterable[ast.stmt]) -> None:
        """Read statements in order; what follows an early ``continue`` or ``return`` is rarer."""
        context = self.context
        for statement in body:
            read = self._statements.get(type(statement))
            if read is not None:
                read(self, statement)
            if (
                isinstance(statement, ast.If)
                and not statement.orelse
                and leaves(statement.body)
                and self.rare(statement.test, negated=True)
            ):
                self.context = self.context.but(rare=True)
        self.context = context

    def rare(self, test: ast.expr, *, negated: bool = False) -> bool:
        """Return whether a condition holds in few steps, as the settings stand."""
        if not is_rare(test, negated=negated):
            return False
        truth = self._truth(test)
        return truth is None or truth is negated

    def switch(self, test: ast.expr) -> bool:
        """Return whether a condition is a switch that is off in normal runs."""
        return is_switch(test) and self._truth(test) is not True

    def _truth(self, test: ast.expr) -> bool | None:
        if not self.is_program:
            return None  # who imports it decides
        return self.module.settings.truth(test, self.function.node if self.function is not None else None)

    def within(self, context: Context, body: Iterable[ast.stmt]) -> None:
        """Read statements that stand elsewhere."""
        saved, self.context = self.context, context
        self.block(body)
        self.context = saved

    def event(self, kind: str, node: ast.expr, name: str = "") -> None:
        """Note what timing rules ask for."""
        self.events.append(SourceEvent(kind, node, name, self.context))

    @property
    def events(self) -> list[SourceEvent]:
        """What timing rules need of the function that is read, or of the module's level."""
        return self.function.events if self.function else self.module.module_events

    # -- names ---------------------------------------------------------------------------------

    @property
    def function(self) -> SourceFunction | None:
        """The function that is read."""
        return self.context.function

    @property
    def owner(self) -> Class | None:
        """The class whose method is read."""
        return self.context.owner

    def lookup(self, name: str) -> Value | None:
        """Return what a variable holds, None when nothing is known."""
        for scope in reversed(self.scopes):
            value = scope.get(name)
            if value is not None:
                return value
        return None

    def switches_grad_off(self, name: str) -> bool:
        """Return whether what is used around others switches autograd off, by its name or its text."""
        if _SAID_OFF.search(name):
            return True
        function, made = self.by_name.get(name), self.module.classes.get(name)
        node = function.node if function is not None else made.node if made is not None else None
        return node is not None and _GRAD_OFF.search(self.relevance.text_of(node)) is not None

    def bind(self, name: str, value: Value) -> None:
        """Give a variable of the innermost scope its value."""
        self.scopes[-1][name] = value
        self._count_assignment(name)

    def target(self, node: ast.expr, value: Value) -> None:
        """Bind what stands left of ``=``."""
        if isinstance(node, ast.Name):
            self.bind(node.id, value)
        elif isinstance(node, ast.Tuple | ast.List):
            for index, element in enumerate(node.elts):
                if value.items:
                    inner = value.items[index] if index < len(value.items) else UNKNOWN
                elif value.kind == "tensor":
                    inner = value
                else:
                    inner = UNKNOWN
                self.target(element, inner)
        elif isinstance(node, ast.Starred):
            self.target(node.value, UNKNOWN)
        elif isinstance(node, ast.Attribute):
            self.eval(node.value)
            path = path_of(node)
            if path:
                self.set_attribute(path, value)
                self._count_assignment(path)
                if not path.startswith("self."):
                    self.scopes[-1][path] = value
        elif isinstance(node, ast.Subscript):
            self.eval(node.value)
            self.eval(node.slice)

    def set_attribute(self, path: str, value: Value) -> None:
        """Give an attribute of ``self``, or of another object of the file, its value."""
        root, _, name = path.partition(".")
        owner = self.owner if root == "self" else self.class_of(self.lookup(root))
        if owner is not None and "." not in name:
            known = owner.attributes.get(name)
            # what was known of it is not lost with a reset to None
            if known is None or value.kind not in ("unknown", "host"):
                owner.attributes[name] = value

    def class_of(self, value: Value | None) -> Class | None:
        """Return the class of the file that an object is of."""
        return self.module.classes.get(value.of) if value is not None and value.kind in ("object", "module") else None

    def _count_assignment(self, path: str) -> None:
        for loop in self.context.loops():
            loop.assigned[path] = loop.assigned.get(path, 0) + 1


ReadExpression = Callable[[Walker, Any], Value]
ReadStatement = Callable[[Walker, Any], None]
