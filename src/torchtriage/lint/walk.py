"""One pass over a file: scopes, imports, loops, conditions and the flow of tensors.

Statements are read in the order they run: module level first, then each function with the names of
its surroundings. A function whose text holds nothing any rule is about is not read at all.
"""

from __future__ import annotations

import ast
import re
from collections import deque
from collections.abc import Callable, Iterable
from functools import lru_cache
from itertools import accumulate
from typing import Any

from torchtriage.lint import names
from torchtriage.lint.conditions import ends, is_rare, is_switch, leaves, takes_remainder
from torchtriage.lint.facts import (
    Assign,
    Call,
    Class,
    Context,
    Event,
    Function,
    Loop,
    Module,
    Test,
    is_step,
    keyword,
    literal,
)
from torchtriage.lint.syntax import constructs, destination, flag, goes_over, moves, path_of, turns
from torchtriage.lint.values import (
    CPU,
    DEVICE,
    HOST,
    MAYBE,
    NUMPY,
    OUTPUT,
    UNKNOWN,
    Value,
    placed,
)

__all__ = ["is_optimizer_step", "walk"]

Env = dict[str, Value]

_DEVICE_WORDS = (
    "cuda", ".to(", "self.device", "device_map", "accelerat", "ightning", "fabric", "Trainer",
    "parallel",
)  # fmt: skip
# x.device names none: it follows another tensor
_DEVICE = re.compile(r"(?<![.\w])device\b(?!=\w+(\.\w+)*\.device)|\b(mps|xpu|hip)\b")
_WAITS = re.compile(r"synchronize$|(^|_)sync$|\.wait$|block_until_ready$|do_bench")
_BUILTINS = frozenset({"float", "int", "bool", "len", "isinstance", "print", "hasattr", "str",
                       "getattr", "range", "type", "id", "repr", "round", "callable"})  # fmt: skip
_MAYBE_TENSOR = Value("tensor", MAYBE)
_GUESS = Value("tensor", MAYBE, guess=True)
_DATA = Value("tensor", CPU, data=True)
_A_MODULE = Value("module", MAYBE)
_A_LOADER = Value("loader", CPU)
_AN_OPTIMIZER = Value("optimizer", CPU)
_PARAMS = Value("params", MAYBE)
_LIST = Value("list", CPU)
_CLOCK = Value("clock", CPU)
_COMPARED = Value("unknown", mask=True)


def walk(tree: ast.Module, text: str, path: str) -> Module:
    """Return what rules need to know about one parsed file."""
    walker = _Walker(tree, text, path)
    walker.run()
    return walker.module


class _Walker:
    def __init__(self, tree: ast.Module, text: str, path: str) -> None:
        uses_device = any(word in text for word in _DEVICE_WORDS) or bool(_DEVICE.search(text))
        self.module = Module(path, text, tree, uses_device)
        self.trains = "backward(" in text or ".step(" in text
        self.aliases = self.module.aliases
        self.globals: Env = {}
        self.by_name: dict[str, Function] = {}
        self.waiting: deque[tuple[Function, list[Env]]] = deque()
        self.scopes: list[Env] = [self.globals]
        self.function: Function | None = None
        self.context = Context()
        # where each line starts: the text of a function is looked at without a copy
        lengths = (len(line) + 1 for line in text.split("\n"))
        self.starts = [0, *accumulate(lengths, initial=0)]
        self.user: Call | None = None

    # -- order ---------------------------------------------------------------------------------

    def run(self) -> None:
        self.block(self.module.tree.body)
        # constructors first: they say what self's attributes are
        # then callers before what they call: main() is the last function of most files, public
        # methods are the first of most classes
        pending = list(self.waiting)
        first = [one for one in pending if one[0].name in ("__init__", "setup")]
        methods = [one for one in pending if one[0].owner is not None and one not in first]
        plain = [one for one in reversed(pending) if one[0].owner is None]
        self.waiting = deque([*first, *plain, *methods])
        while self.waiting:
            function, scopes = self.waiting.popleft()
            self._body_of(function, scopes)
        self._follow_calls()

    def _body_of(self, function: Function, scopes: list[Env]) -> None:
        saved = self.scopes, self.function, self.context
        local: Env = {}
        self.scopes = [*scopes, local]
        self.function = function
        self.context = Context(function=function, no_grad=function.no_grad)
        if names.SIDE.search(function.qualname):
            self.context.aside = True
        self._parameters(function, local)
        self.block(function.node.body)
        self.scopes, self.function, self.context = saved

    def _follow_calls(self) -> None:
        """Mark functions called from hot places, one level."""
        for function in self.module.functions:
            for one in function.events:
                function.has_backward = function.has_backward or one.kind == "backward"
        hot: list[Function] = []
        for call in self.module.calls:
            callee = call.callee
            if callee is None:
                continue
            if call.context.loop is not None and not call.context.loop.comprehension:
                callee.called_in_loop = True
                call.context.loop.calls.add(callee)
            if call.context.no_grad:
                callee.called_without_grad = True
        for call in self.module.calls:
            callee = call.callee
            if callee is None or callee.name == "__init__":
                continue
            if call.context.hot and not self._loops_itself(callee):
                hot.append(callee)
            where = call.context.function
            if where is not None and where.compiled and not call.context.rare:
                callee.compiled_by_caller = True
        for callee in hot:
            callee.called_hot = True

    def _loops_itself(self, function: Function) -> bool:
        """Return whether a function holds the loop of steps: then its own lines run per epoch."""
        return any(loop.function is function and loop.steps for loop in self.module.loops)

    def _callee(self, node: ast.Call, context: Context) -> Function | None:
        func = node.func
        if isinstance(func, ast.Name):
            return self.by_name.get(func.id)
        if (
            isinstance(func, ast.Attribute)
            and isinstance(func.value, ast.Name)
            and func.value.id == "self"
            and context.function is not None
            and context.function.owner is not None
        ):
            return context.function.owner.methods.get(func.attr)
        return None

    def block(self, body: Iterable[ast.stmt]) -> None:
        """Read statements in order; what follows an early ``continue`` or ``return`` is rarer."""
        context = self.context
        for statement in body:
            handler = _STATEMENTS.get(type(statement))
            if handler is not None:
                handler(self, statement)
            if (
                isinstance(statement, ast.If)
                and not statement.orelse
                and leaves(statement.body)
                and is_rare(statement.test, negated=True)
            ):
                self.context = self._inside(rare=True)
        self.context = context

    def _inside(self, **changes: Any) -> Context:
        old = self.context
        return Context(
            function=old.function,
            loop=changes.get("loop", old.loop),
            rare=changes.get("rare", old.rare),
            aside=changes.get("aside", old.aside),
            no_grad=changes.get("no_grad", old.no_grad),
            in_no_sync=changes.get("in_no_sync", old.in_no_sync),
            modulo=changes.get("modulo", old.modulo),
        )

    def within(self, context: Context, body: Iterable[ast.stmt]) -> None:
        saved, self.context = self.context, context
        self.block(body)
        self.context = saved

    # -- names ---------------------------------------------------------------------------------

    def lookup(self, name: str) -> Value | None:
        for scope in reversed(self.scopes):
            value = scope.get(name)
            if value is not None:
                return value
        return None

    def bind(self, name: str, value: Value) -> None:
        self.scopes[-1][name] = value
        for loop in self.context.loops():
            loop.assigned[name] = loop.assigned.get(name, 0) + 1

    def target(self, node: ast.expr, value: Value) -> None:
        """Bind what stands left of ``=``."""
        if isinstance(node, ast.Name):
            self.bind(node.id, value)
        elif isinstance(node, ast.Tuple | ast.List):
            for index, one in enumerate(node.elts):
                if value.items:
                    inner = value.items[index] if index < len(value.items) else UNKNOWN
                elif value.kind == "tensor":
                    inner = value
                else:
                    inner = UNKNOWN
                self.target(one, inner)
        elif isinstance(node, ast.Starred):
            self.target(node.value, UNKNOWN)
        elif isinstance(node, ast.Attribute):
            self.eval(node.value)
            path = path_of(node)
            if path.startswith("self.") and self.function and self.function.owner:
                self.function.owner.attributes[path[5:]] = value
            if path:
                for loop in self.context.loops():
                    loop.assigned[path] = loop.assigned.get(path, 0) + 1
                if not path.startswith("self."):
                    self.scopes[-1][path] = value
        elif isinstance(node, ast.Subscript):
            self.eval(node.value)
            self.eval(node.slice)

    def _parameters(self, function: Function, local: Env) -> None:
        args = function.node.args
        every = [*args.posonlyargs, *args.args]
        defaults: dict[str, ast.expr] = {}
        for arg, default in zip(reversed(every), reversed(args.defaults), strict=False):
            defaults[arg.arg] = default
        for arg, default_or_none in zip(args.kwonlyargs, args.kw_defaults, strict=True):
            if default_or_none is not None:
                defaults[arg.arg] = default_or_none
        tensors = is_step(function) and function.name == "forward"
        for index, arg in enumerate([*every, *args.kwonlyargs]):
            if index == 0 and function.owner is not None and arg.arg in ("self", "cls"):
                continue
            given = defaults.get(arg.arg)
            value = self._annotation(arg.annotation)
            if value is None and given is not None and literal(given) not in (None, ...):
                value = HOST
            if value is None and (tensors or function.compiled) and given is None:
                value = _GUESS
            if value is None:
                value = _named(arg.arg) or UNKNOWN
            known = self.module.classes.get(path_of(arg.annotation)) if arg.annotation else None
            if known is not None and known.is_module:
                value = _A_MODULE
            if value.kind == "unknown" and arg.arg in function.given:
                value = function.given[arg.arg]
            if function.owner and function.owner.is_lightning and arg.arg == "batch":
                value = Value("tensor", DEVICE)
            elif arg.arg in ("batch_idx", "dataloader_idx"):
                value = HOST
            local[arg.arg] = value

    def _annotation(self, node: ast.expr | None) -> Value | None:
        if node is None:
            return None
        if isinstance(node, ast.BinOp):  # Tensor | None, but not Tensor | list[Tensor]
            if literal(node.left) is None:
                return self._annotation(node.right)
            return self._annotation(node.left) if literal(node.right) is None else UNKNOWN
        if isinstance(node, ast.Subscript):  # Optional[Tensor]
            optional = path_of(node.value).rpartition(".")[2] == "Optional"
            return self._annotation(node.slice) if optional else UNKNOWN
        said = literal(node) if isinstance(node, ast.Constant) else path_of(node)
        if not isinstance(said, str):
            return UNKNOWN
        said = re.sub(r"\b(Optional\[|None\s*\|\s*|\|\s*None)", "", said).strip("[] ")
        if re.fullmatch(r"(\w+\.)*(Tensor|FloatTensor|LongTensor|BoolTensor|IntTensor)", said):
            return _MAYBE_TENSOR
        if re.fullmatch(r"int|float|bool|str|bytes|complex", said):
            return HOST
        if said.endswith("ndarray"):
            return NUMPY
        if said.endswith("DataLoader"):
            return _A_LOADER
        if re.fullmatch(r"(torch\.)?(nn|optim)?\.?(Module|\w+Model)", said):
            return _A_MODULE
        if said.endswith("Optimizer"):
            return _AN_OPTIMIZER
        return UNKNOWN

    # -- expressions ---------------------------------------------------------------------------

    def eval(self, node: ast.expr) -> Value:
        """Return what an expression is, and note every call and condition in it."""
        if type(node) is ast.Constant:
            return HOST
        handler = _EXPRESSIONS.get(type(node))
        if handler is not None:
            value = handler(self, node)
        else:
            value = UNKNOWN
            for child in ast.iter_child_nodes(node):
                if isinstance(child, ast.expr):
                    self.eval(child)
        if value is not UNKNOWN and value is not HOST:
            self.module.values[node] = value
        return value

    def _name(self, node: ast.Name) -> Value:
        value = self.lookup(node.id)
        if value is not None:
            return value
        if node.id in self.aliases:
            return UNKNOWN
        return _named(node.id) or UNKNOWN

    def _attribute(self, node: ast.Attribute) -> Value:
        base = node.value
        if isinstance(base, ast.Name):
            if base.id == "self" and self.function is not None and self.function.owner is not None:
                owner = self.function.owner
                known = owner.attributes.get(node.attr)
                if known is not None:
                    return known
                return _named(node.attr) or UNKNOWN
            known = self.lookup(f"{base.id}.{node.attr}")
            if known is not None:
                return known
            if base.id in self.aliases:
                return UNKNOWN
        value = self.eval(base)
        if value.kind == "tensor":
            if node.attr in names.HOST_ATTRIBUTES:
                return HOST
            if node.attr == "loss":
                return value.but(scalar=True, data=False, guess=False)
            if node.attr in ("data", "grad"):
                return value.but(grad=False)
            return value
        if value.kind == "numpy":
            return NUMPY if node.attr in ("T", "real", "imag", "flat") else HOST
        if value.kind == "host":
            return HOST
        if value.kind == "module" and node.attr not in ("module",):
            return _named(node.attr) or UNKNOWN
        if value.kind == "module":
            return value
        return _named(node.attr) or UNKNOWN

    def _tuple(self, node: ast.Tuple) -> Value:
        return Value("unknown", items=tuple(self.eval(one) for one in node.elts))

    def _list(self, node: ast.List) -> Value:
        return Value("list", CPU, items=tuple(self.eval(one) for one in node.elts))

    def _dict(self, node: ast.Dict) -> Value:
        for key in node.keys:
            if key is not None:
                self.eval(key)
        return Value("list", CPU, items=tuple(self.eval(one) for one in node.values))

    def _yield(self, node: ast.Yield | ast.YieldFrom) -> Value:
        if self.function is not None:
            self.function.is_generator = True
        if node.value is not None:
            self.eval(node.value)
        return UNKNOWN

    def _lambda(self, node: ast.Lambda) -> Value:
        saved = self.context
        self.context = Context(function=self.function, rare=True)  # runs who knows when
        self.scopes.append({arg.arg: UNKNOWN for arg in node.args.args})
        self.eval(node.body)
        self.scopes.pop()
        self.context = saved
        return Value("callable")

    def _walrus(self, node: ast.NamedExpr) -> Value:
        value = self.eval(node.value)
        self.bind(node.target.id, value)
        return value

    def _joined(self, node: ast.JoinedStr) -> Value:
        for part in node.values:
            if isinstance(part, ast.FormattedValue):
                value = self.eval(part.value)
                if value.kind == "tensor":
                    self.module.formats.append(Test(part.value, value, self.context, "f-string"))
                if part.format_spec is not None:
                    self.eval(part.format_spec)
        return HOST

    def _conditional(self, node: ast.IfExp) -> Value:
        self._test(node.test, "if")
        rare = self.context.rare or is_rare(node.test)
        saved = self.context
        if rare and not saved.rare:
            self.context = self._inside(rare=True)
        one = self.eval(node.body)
        self.context = saved
        other = self.eval(node.orelse)
        if one.kind == other.kind:
            return one if one.device >= other.device else other
        return one if other.kind in ("host", "unknown") else other

    def _boolean(self, node: ast.BoolOp) -> Value:
        values = []
        saved = self.context
        for index, one in enumerate(node.values):
            if index < len(node.values) - 1:
                values.append(self._test(one, "and" if isinstance(node.op, ast.And) else "or"))
                if isinstance(node.op, ast.And) and is_rare(one):
                    self.context = self._inside(rare=True)
            else:
                values.append(self.eval(one))
        self.context = saved
        return values[-1]

    def _test(self, node: ast.expr, kind: str) -> Value:
        """Read the truth of an expression."""
        if isinstance(node, ast.BoolOp):
            value = self._boolean(node)
            last = node.values[-1]
            self._read_truth(last, value, kind)
            return HOST
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            self._test(node.operand, kind)
            return HOST
        value = self.eval(node)
        self._read_truth(node, value, kind)
        return HOST if value.kind != "tensor" else value

    def _read_truth(self, node: ast.expr, value: Value, kind: str) -> None:
        plain = isinstance(node, ast.Name | ast.Attribute)  # "if mask:" may ask for None
        if value.kind == "tensor" and (value.scalar or not plain):
            self.module.tests.append(Test(node, value, self.context, kind))

    def _unary(self, node: ast.UnaryOp) -> Value:
        if isinstance(node.op, ast.Not):
            self._test(node.operand, "not")
            return HOST
        value = self.eval(node.operand)
        if isinstance(node.op, ast.Invert) and value.kind == "tensor":
            return value.but(mask=True)  # only masks are inverted
        return value

    def _compare(self, node: ast.Compare) -> Value:
        values = [self.eval(node.left), *(self.eval(one) for one in node.comparators)]
        if any(isinstance(op, ast.Is | ast.IsNot | ast.In | ast.NotIn) for op in node.ops):
            return HOST
        if any(isinstance(literal(one), str) for one in (node.left, *node.comparators)):
            return HOST
        if any(one.value is None for one in node.comparators if isinstance(one, ast.Constant)):
            return HOST
        tensors = [one for one in values if one.kind == "tensor"]
        if not tensors:
            if any(one.kind == "numpy" for one in values):
                return NUMPY
            return HOST if all(one.kind == "host" for one in values) else _COMPARED
        device, _ = placed(tensors)
        return Value(
            "tensor",
            device,
            scalar=all(one.scalar for one in tensors),
            guess=all(one.guess for one in tensors),
            data=any(one.data for one in tensors),
            mask=True,
        )

    def _binary(self, node: ast.BinOp) -> Value:
        left, right = self.eval(node.left), self.eval(node.right)
        if isinstance(node.op, ast.Mod) and isinstance(literal(node.left), str):
            for one in (right, *right.items):
                if one.kind == "tensor":
                    self.module.formats.append(Test(node.right, one, self.context, "%"))
                    break
            return HOST
        return _together(left, right)

    def _subscript(self, node: ast.Subscript) -> Value:
        value = self.eval(node.value)
        index = self.eval(node.slice)
        if value.kind == "tensor":
            if isinstance(node.ctx, ast.Load):
                self._mask(node, value)
            if index.kind == "host" and isinstance(literal(node.slice), str):
                return value  # a batch as a dictionary
            return value.but(made_by=None) if value.made_by else value
        if value.kind == "numpy":
            return NUMPY
        if value.kind == "list" and value.items:
            at = literal(node.slice)
            if (
                isinstance(at, int)
                and not isinstance(at, bool)
                and -len(value.items) <= at < len(value.items)
            ):
                return value.items[at]
            kinds = {one.kind for one in value.items}
            return value.items[0] if len(kinds) == 1 else UNKNOWN
        if value.kind == "unknown" and value.items:
            at = literal(node.slice)
            if (
                isinstance(at, int)
                and not isinstance(at, bool)
                and -len(value.items) <= at < len(value.items)
            ):
                return value.items[at]
        if value.kind == "host":
            return HOST
        return UNKNOWN

    def _mask(self, node: ast.Subscript, value: Value) -> None:
        parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        if any(self.module.value(one).mask for one in parts):
            self.module.masks.append(Test(node, value, self.context, "mask"))

    def _comprehension(
        self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp
    ) -> Value:
        saved = self.context
        self.scopes.append({})
        for one in node.generators:
            iterated = self.eval(one.iter)
            loop = Loop(
                one,
                self.context.loop,
                self.function,
                iterated,
                path_of(one.iter),
                comprehension=True,
            )
            self.module.loops.append(loop)
            self.module.loop_contexts[loop] = self.context
            self.context = self._inside(loop=loop)
            self._bind_targets(one.target, one.iter, iterated, loop)
            for test in one.ifs:
                self._test(test, "if")
        made = node.value if isinstance(node, ast.DictComp) else node.elt
        self.module.elements[node.generators[-1]] = made
        if isinstance(node, ast.DictComp):
            self.eval(node.key)
        element = self.eval(made)
        self.scopes.pop()
        self.context = saved
        if element.kind == "tensor":
            # a batch moved piece by piece is still a batch
            return (
                element if isinstance(node, ast.DictComp) else Value("list", CPU, items=(element,))
            )
        return _LIST

    # -- calls ---------------------------------------------------------------------------------

    def _call(self, node: ast.Call) -> Value:
        func = node.func
        name, attr = "", ""
        receiver = UNKNOWN
        call = Call(node, "", "", UNKNOWN, (), UNKNOWN, self.context, user=self.user)
        saved, self.user = self.user, call
        if isinstance(func, ast.Attribute):
            attr = func.attr
            name = self._dotted(func)
            if not name:
                receiver = self.eval(func.value)
        elif isinstance(func, ast.Name):
            attr = func.id
            if self.lookup(attr) is None:
                name = self.aliases.get(attr, "")
            receiver = self.lookup(attr) or _named_callee(attr)
        else:
            receiver = self.eval(func)
        arguments = [self.eval(one) for one in node.args]
        arguments += [self.eval(one.value) for one in node.keywords]
        self.user = saved
        call.name, call.attr, call.receiver = name, attr, receiver
        call.arguments = tuple(arguments)
        call.context = self.context
        call.value = self._result(call)
        self._pass_on(call)
        self.module.calls.append(call)
        if name:
            self.module.named[name].append(call)
        if isinstance(func, ast.Attribute) and not name:
            self.module.methods[attr].append(call)
        elif isinstance(func, ast.Name) and not name:
            self.module.named[attr].append(call)
        return call.value

    def _pass_on(self, call: Call) -> None:
        """Tell a function of the file what it is called with."""
        callee = call.callee = self._callee(call.node, self.context)
        if callee is None or callee.given:
            return
        args = callee.node.args
        places = [one.arg for one in (*args.posonlyargs, *args.args)]
        if callee.owner is not None:
            places = places[1:]
        names_ = [*places[: len(call.node.args)], *(one.arg or "" for one in call.node.keywords)]
        for name, value in zip(names_, call.arguments, strict=False):
            if value.kind in ("tensor", "module", "loader", "optimizer", "params"):
                callee.given[name] = value

    def _dotted(self, node: ast.Attribute) -> str:
        """Return the full name of a chain that starts at an import, else nothing."""
        parts = [node.attr]
        base: ast.expr = node.value
        while isinstance(base, ast.Attribute):
            parts.append(base.attr)
            base = base.value
        if not isinstance(base, ast.Name):
            return ""
        root = self.aliases.get(base.id)
        if root is None or self.lookup(base.id) is not None:
            return ""
        return ".".join((root, *reversed(parts)))

    def _result(self, call: Call) -> Value:
        """Return what a call gives, and take note of what it does to its loop and function."""
        if names.BUILDER.match(call.attr) and not call.name.startswith("torch."):
            return Value("module", MAYBE if self.module.uses_device else CPU)
        if call.name:
            return self._imported(call)
        if isinstance(call.node.func, ast.Name):
            return self._plain(call)
        if isinstance(call.node.func, ast.Attribute):
            return self._method(call)
        return self._invoke(call) if call.receiver.kind in ("module", "callable") else UNKNOWN

    def _imported(self, call: Call) -> Value:
        name, node, given = call.name, call.node, list(call.arguments)
        if name in names.CLOCKS:
            self._event("clock", node, "")
            for loop in self.context.loops():
                loop.times = True
            return _CLOCK
        if name.startswith("torch."):
            return self._torch(call)
        if name.startswith(("numpy.", "scipy.", "cv2.", "PIL.")):
            read = next((one.readback for one in given if one.readback is not None), None)
            return NUMPY.but(readback=read) if read is not None else NUMPY
        last = name.rpartition(".")[2]
        if last in names.WRAPPERS and given:
            return self._wrapped(last, given[0])
        if last == "from_pretrained":
            owner = name.split(".")[-2]
            if names.PRETRAINED.search(owner):
                return Value("module", CPU, evaluated=True)
            return UNKNOWN
        if "DistributedDataParallel" in last:
            return Value("module", DEVICE, ddp=True)
        if names.CRITERION.match(last) or last.endswith("_loss"):
            return self._loss(given)
        if last[:1].isupper() and re.search(r"(Adam\w*|SGD|Optimizer|Lion|Adafactor)$", last):
            return _AN_OPTIMIZER
        if last[:1].isupper() and names.PRETRAINED.search(last):
            return Value("module", CPU)
        if last[:1].isupper() and self._builds_parts() and "onfig" not in last:
            return Value("module", CPU, of="part")
        if name.startswith("einops."):
            device, grad = placed(given[:1])
            return Value("tensor", device, grad=grad)
        return UNKNOWN

    def _torch(self, call: Call) -> Value:
        name, node, given = call.name, call.node, list(call.arguments)
        last = name.rpartition(".")[2]
        if name in names.FACTORIES or last.endswith("_like"):
            return self._factory(call)
        if name in names.LOADERS:
            return Value("loader", CPU, pinned=flag(node, "pin_memory", 7))
        if name in names.DATASETS:
            device, _ = placed(given)
            return Value("dataset", device)
        if name == "torch.compile":
            target = given[0] if given else UNKNOWN
            self._compile(node)
            self._event("compile", node, "")
            if target.kind == "module":
                return target.but(compiled=True)
            return Value("callable", compiled=True)
        if name in names.PARALLEL or last == "DistributedDataParallel":
            return Value("module", DEVICE, ddp=True)
        if name in ("torch.nn.DataParallel", "torch.nn.parallel.DataParallel"):
            return Value("module", DEVICE)
        if name.startswith("torch.optim.") and last[:1].isupper():
            return _AN_OPTIMIZER if "lr_scheduler" not in name else UNKNOWN
        if name.startswith("torch.jit.") and last in ("load", "script", "trace"):
            return Value("module", MAYBE, evaluated=True)
        if name == "torch.nn.Parameter":
            return Value("tensor", CPU if not self.module.uses_device else MAYBE, grad=True)
        if name == "torch.nn.utils.clip_grad_norm_":
            return Value("tensor", MAYBE, scalar=True, norm=True)
        if name in names.PROFILERS:
            return Value("profiler")
        if _WAITS.search(name):
            self._event("wait", node, "")
            return HOST
        if name.startswith("torch.nn.") and last[:1].isupper() and "functional" not in name:
            return Value("module", CPU, of=name)
        if name == "torch.cuda.Event" or name == "torch.Event":
            return Value("callable", of="event")
        if name in ("torch.equal", "torch.allclose", "torch.is_nonzero"):
            device, _ = placed(given)
            self._event("wait", node, "")
            return Value("tensor", device, scalar=True)
        if name in ("torch.cat", "torch.stack", "torch.concat", "torch.vstack", "torch.hstack"):
            device, grad = placed(given[:1])
            return Value("tensor", device, grad=grad and not self.context.no_grad)
        if names.HOST_CALLS.match(name) or not names.TENSOR_SPACES.match(name):
            return UNKNOWN if not name.startswith("torch.is_") else HOST
        device, grad = placed(given)
        if last in ("split", "chunk", "unbind", "tensor_split", "meshgrid"):
            return Value("list", CPU, items=(Value("tensor", device, grad=grad),))
        scalar = (last in names.REDUCTIONS and len(node.args) == 1 and not node.keywords) or bool(
            names.LOSSES.search(last) and literal(keyword(node, "reduction")) != "none"
        )
        if last in ("cdist",):
            scalar = False
        if scalar and last in ("max", "min") and len(node.args) > 1:
            scalar = False
        scalar = scalar or (
            bool(given)
            and all(one.scalar or one.kind == "host" for one in given)
            and any(one.scalar for one in given)
        )
        made = [one.made_by for one in given if one.kind != "host"]
        return Value(
            "tensor",
            device,
            grad=grad and not self.context.no_grad,
            scalar=scalar,
            made_by=made[0] if len(made) == 1 else None,
        )

    def _factory(self, call: Call) -> Value:
        node, given = call.node, call.arguments
        last = call.name.rpartition(".")[2]
        if last.endswith("_like"):
            return Value("tensor", given[0].device if given else MAYBE)
        read = next((one.readback for one in given if one.readback is not None), None)
        device = keyword(node, "device")
        if device is None:
            if last == "as_tensor" and given and given[0].kind in ("tensor", "unknown"):
                return given[0] if given[0].kind == "tensor" else Value("tensor", MAYBE)
            made_by = None if last in ("from_numpy",) else node
            return Value("tensor", CPU, made_by=made_by, readback=read)
        where = literal(device)
        return Value("tensor", CPU if where == "cpu" else DEVICE, readback=read)

    def _plain(self, call: Call) -> Value:
        """Return what a call by a bare name gives: a builtin, a function or class of the file."""
        attr, node, given = call.attr, call.node, list(call.arguments)
        if attr in ("float", "int", "bool"):
            if given and given[0].kind == "tensor":
                self._event("wait", node, "")
            return HOST
        if attr in _BUILTINS:
            return HOST
        if attr in names.WRAPPERS and given:
            return self._wrapped(attr, given[0])
        if attr == "zip":
            return Value("list", CPU, items=tuple(_element(one) for one in given), of="zip")
        if attr in ("sum", "max", "min", "abs") and given:
            items = [one for value in given for one in (value, *value.items)]
            if any(one.kind == "tensor" for one in items):
                device, grad = placed(given)
                return Value("tensor", device, grad=grad, scalar=any(one.scalar for one in items))
            return UNKNOWN
        if attr in ("list", "tuple", "reversed", "sorted", "next", "set") and given:
            if attr == "next":
                return _element(given[0])
            return given[0]
        known = self.module.classes.get(attr)
        if known is not None and known.is_module:
            return Value("module", CPU, of=attr)
        if known is None and attr[:1].isupper() and names.PRETRAINED.search(attr):
            return Value("module", CPU)
        if known is None and self._builds_parts() and attr[:1].isupper():
            return Value("module", CPU, of="part")
        if call.receiver.kind in ("module", "callable"):
            return self._invoke(call)
        callee = self.by_name.get(attr)
        self._event("wait" if _WAITS.search(attr) else "call", node, attr)
        if callee is not None and callee.compiled:
            self._event("first", node, attr)
            device, grad = placed(given)
            return Value("tensor", device, grad=grad)
        if names.CRITERION.match(attr):
            return self._loss(given)
        return UNKNOWN

    def _builds_parts(self) -> bool:
        """Return whether this is a module's constructor: what it builds are its parts."""
        function = self.function
        return (
            function is not None
            and function.name == "__init__"
            and function.owner is not None
            and function.owner.is_module
        )

    def _loss(self, given: list[Value]) -> Value:
        tensors = [one for one in given if one.kind == "tensor"]
        device, grad = placed(tensors) if tensors else (MAYBE, True)
        return Value(
            "tensor", max(device, MAYBE) if not tensors else device,
            grad=(grad or not tensors) and not self.context.no_grad, scalar=True,
        )  # fmt: skip

    def _invoke(self, call: Call) -> Value:
        """Return what calling a module or a compiled function gives."""
        receiver, given = call.receiver, list(call.arguments)
        path = (
            path_of(call.node.func) if isinstance(call.node.func, ast.Name | ast.Attribute) else ""
        )
        if receiver.of == "event":
            return UNKNOWN
        if receiver.kind == "callable" and not receiver.compiled:
            return UNKNOWN
        self._event("first" if receiver.compiled else "work", call.node, path)
        inside = self.function
        if inside is not None and self.context.loop is None and not self.context.rare:
            inside.runs_module = (
                inside.runs_module or inside.owner is None or (not inside.owner.is_module)
            )
        loop = next((one for one in self.context.loops() if not one.comprehension), None)
        if loop is not None and not self.context.rare:
            owner = self.function.owner if self.function is not None else None
            # inside a module a loop over chunks or layers is part of one step
            if owner is None or not owner.is_module:
                loop.runs_module = True
        device, _ = placed(given)
        device = max(receiver.device, device if given else CPU)
        last = receiver.of.rpartition(".")[2]
        criterion = last.endswith("Loss") or last == "criterion"
        if criterion:
            return self._loss(given)
        return Value("tensor", device, grad=not self.context.no_grad, of=OUTPUT)

    def _method(self, call: Call) -> Value:
        attr, node, receiver = call.attr, call.node, call.receiver
        if attr == "backward" or attr == "manual_backward":
            return self._backward(call)
        if attr == "step" and is_optimizer_step(call):
            self._optimizes()
            return HOST
        if _WAITS.search(attr):
            self._event("wait", node, "")
        if attr == "compile" and receiver.kind == "module":
            self._compile(node)
        if receiver.kind == "tensor":
            return self._tensor_method(call)
        if receiver.kind == "numpy":
            return NUMPY if attr not in ("item", "tolist") else HOST
        if receiver.kind == "module":
            return self._module_method(call)
        if receiver.kind in ("loader", "list") and attr in ("append", "extend"):
            self._append(call)
            return UNKNOWN
        if receiver.kind == "list":
            if attr == "clear":
                path = path_of(node.func.value) if isinstance(node.func, ast.Attribute) else ""
                for loop in self.context.loops():
                    loop.cleared.add(path)
            if attr == "items":
                return receiver
            return UNKNOWN
        if receiver.kind == "unknown":
            return self._unknown_method(call)
        if receiver.kind == "callable":
            if receiver.of == "event" and attr in ("record", "elapsed_time"):
                for loop in self.context.loops():
                    loop.times = True
            return UNKNOWN
        if receiver.kind in ("host", "clock"):
            return HOST
        return UNKNOWN

    def _unknown_method(self, call: Call) -> Value:
        attr, node, given = call.attr, call.node, list(call.arguments)
        path = path_of(node.func)
        if attr in ("append", "extend"):
            self._append(call)
            return UNKNOWN
        if attr in ("item", "tolist"):
            return HOST
        if attr in ("cuda", "to", "eval") and constructs(call.owner):
            # DQN(4, 2).to(device): what is built and moved in one breath is a module
            device = DEVICE if attr == "cuda" or (attr == "to" and moves(node)) else MAYBE
            return Value("module", device, evaluated=attr == "eval")
        if attr == "cpu" and not given:
            self._event("wait", node, "")
            return Value("tensor", CPU, readback=node)
        if attr == "numpy":
            return NUMPY.but(readback=None)
        if attr == "cuda" or (attr == "to" and moves(node)):
            return Value("tensor", DEVICE, data=call.receiver.data)
        if attr == "detach" and not given:
            return Value("tensor", MAYBE)
        if attr == "eval" and not given:
            return Value("module", MAYBE, evaluated=True)
        if attr == "prepare":
            moved = [one.but(device=DEVICE) if one.kind == "module" else one for one in given]
            if len(moved) > 1:
                return Value("unknown", items=tuple(moved))
            return moved[0] if moved else UNKNOWN
        if attr == "scale" and given:
            return given[0]  # a gradient scaler's scale(loss)
        if attr in ("parameters", "named_parameters"):
            return _PARAMS
        if attr == "set_postfix":
            return UNKNOWN
        # self.model(x): a method by syntax, a module by its name
        value = self._attribute_value(node.func)
        if value.kind == "module":
            call.receiver = value
            return self._invoke(call)
        if value.kind == "callable" and value.compiled:
            call.receiver = value
            return self._invoke(call)
        if names.CRITERION.match(attr):
            return self._loss(given)
        callee = self._callee(node, self.context)
        if callee is not None and callee.compiled:
            self._event("first", node, path)
            return _MAYBE_TENSOR
        return UNKNOWN

    def _attribute_value(self, func: ast.expr) -> Value:
        """Return what ``self.model`` is when it is called."""
        if not isinstance(func, ast.Attribute):
            return UNKNOWN
        base = func.value
        if (
            isinstance(base, ast.Name)
            and base.id == "self"
            and self.function
            and self.function.owner
        ):
            owner = self.function.owner
            if func.attr in owner.methods:
                return UNKNOWN
            known = owner.attributes.get(func.attr)
            if known is not None:
                return known
        elif isinstance(base, ast.Name):
            known = self.lookup(f"{base.id}.{func.attr}")
            if known is not None:
                return known
        return _named_callee(func.attr)

    def _tensor_method(self, call: Call) -> Value:
        attr, node, receiver, given = call.attr, call.node, call.receiver, list(call.arguments)
        if attr in ("item", "tolist"):
            self._event("wait", node, "")
            return HOST
        if attr == "cpu" or (attr == "to" and destination(node) == "cpu"):
            if receiver.device > CPU:
                self._event("wait", node, "")
                return receiver.but(device=CPU, readback=node, grad=receiver.grad)
            return receiver
        if attr == "numpy":
            if receiver.device > CPU:
                self._event("wait", node, "")
                return NUMPY.but(readback=node)
            return NUMPY.but(readback=receiver.readback)
        if attr == "cuda" or (attr in ("to", "type_as") and self._moves_to_device(call)):
            # which factory built it, or who read it back, is asked of the receiver
            return receiver.but(device=DEVICE, made_by=None, readback=None, guess=False)
        if attr in ("detach", "detach_"):
            return receiver.but(grad=False)
        if attr in names.HOST_METHODS:
            return HOST
        if attr.startswith(("get_", "to_", "from_", "is_")):
            return UNKNOWN  # no tensor has these: the annotation is wrong
        if attr == "items" and receiver.data:
            return receiver
        if attr in ("append", "extend"):
            self._append(call)
            return UNKNOWN
        if attr in names.REDUCTIONS and not node.args and not node.keywords:
            return receiver.but(
                scalar=True, guess=False, made_by=None, of="",
                grad=receiver.grad and attr not in ("any", "all", "argmax", "argmin"),
            )  # fmt: skip
        if attr in ("split", "chunk", "unbind", "tensor_split"):
            return Value("list", CPU, items=(receiver.but(made_by=None, of=""),))
        device, grad = placed([receiver, *given])
        if attr in names.REDUCTIONS or receiver.guess:
            receiver = receiver.but(guess=receiver.guess and attr not in names.REDUCTIONS)
        return receiver.but(
            device=device if receiver.kind == "tensor" and device > CPU else receiver.device,
            grad=(grad or receiver.grad)
            and attr not in ("argmax", "argmin", "any", "all", "eq", "ne", "gt", "lt", "ge", "le")
            and not self.context.no_grad,
            made_by=receiver.made_by if all(one.kind == "host" for one in given) else None,
            mask=attr == "bool" or (receiver.mask and attr in names.RESHAPES),
            of="",
        )

    def _moves_to_device(self, call: Call) -> bool:
        if call.attr == "type_as":
            return bool(call.arguments) and call.arguments[0].kind == "tensor"
        if moves(call.node):
            return True
        first = call.node.args[0] if call.node.args else None
        # x.to(other): the device of another tensor
        return (
            isinstance(first, ast.Name)
            and bool(call.arguments)
            and call.arguments[0].kind == "tensor"
            and not call.arguments[0].guess
        )

    def _module_method(self, call: Call) -> Value:
        attr, node, receiver = call.attr, call.node, call.receiver
        if attr in ("to", "cuda"):
            if attr == "cuda" or moves(node):
                moved = receiver.but(device=DEVICE)
                self._rebind(call, moved)
                return moved
            return receiver
        if attr in ("eval", "train"):
            on = attr == "train" and literal(node.args[0] if node.args else None) is not False
            changed = receiver.but(evaluated=not on)
            self._rebind(call, changed)
            return changed
        if attr in ("parameters", "named_parameters", "buffers"):
            return _PARAMS
        if attr in ("forward", "generate", "sample", "encode", "decode", "predict"):
            result = self._invoke(call)
            return result if attr == "forward" else result.but(grad=False)
        if attr in (
            "half",
            "float",
            "bfloat16",
            "double",
            "compile",
            "requires_grad_",
            "cpu",
            "xpu",
        ):
            return receiver
        if attr in ("state_dict", "no_sync", "zero_grad", "modules", "named_modules", "children"):
            return UNKNOWN
        if attr in ("append", "extend"):
            return UNKNOWN
        if attr == "step":
            return UNKNOWN
        return UNKNOWN if not names.MODULE.match(attr) else self._invoke(call)

    def _rebind(self, call: Call, value: Value) -> None:
        """``model.cuda()`` as a statement changes the model itself."""
        owner = call.owner
        if isinstance(owner, ast.Name):
            for scope in reversed(self.scopes):
                if owner.id in scope:
                    scope[owner.id] = value
                    return
            self.scopes[-1][owner.id] = value
        elif owner is not None and self.function is not None and self.function.owner is not None:
            path = path_of(owner)
            if path.startswith("self."):
                self.function.owner.attributes[path[5:]] = value

    def _append(self, call: Call) -> None:
        owner = call.owner
        if owner is not None and call.node.args and path_of(owner):
            self.module.assigns.append(
                Assign(call.node, call.attr, path_of(owner), call.arguments[0], call.node.args[0],
                       self.context)
            )  # fmt: skip

    def _wrapped(self, name: str, first: Value) -> Value:
        if name == "enumerate":
            if first.kind == "loader":
                return first.but(items=(HOST, _element(first)), of="enumerate")
            return Value("list", CPU, items=(HOST, _element(first)), of="enumerate")
        return first

    def _compile(self, node: ast.Call) -> None:
        """Remember the function of the file that is compiled."""
        if not node.args:
            if isinstance(node.func, ast.Attribute):
                self._mark_compiled(self.module.value(node.func.value).of)
            return
        target = node.args[0]
        if isinstance(target, ast.Name):
            self._mark_compiled(self.module.value(target).of or target.id)
        elif isinstance(target, ast.Call):
            self._mark_compiled(self.module.value(target).of)
        elif isinstance(target, ast.Attribute) and path_of(target).startswith("self."):
            owner = self.function.owner if self.function else None
            if owner is not None and target.attr in owner.methods:
                owner.methods[target.attr].compiled = True
            else:
                self._mark_compiled(self.module.value(target).of)

    def _mark_compiled(self, name: str) -> None:
        known = self.module.classes.get(name)
        if known is not None and "forward" in known.methods:
            known.methods["forward"].compiled = True
        elif name in self.by_name:
            self.by_name[name].compiled = True

    def _backward(self, call: Call) -> Value:
        self._event("backward", call.node, "")
        if self.function is not None:
            if self.context.loop is None:
                self.function.steps = True
            self.function.has_backward = True
        for loop in self.context.loops():
            if not loop.comprehension:
                loop.backward = True
                break
        return HOST

    def _optimizes(self) -> None:
        if self.function is not None and self.context.loop is None:
            self.function.steps = True
        for loop in self.context.loops():
            if not loop.comprehension:
                loop.optimizes = True
                break

    def _event(self, kind: str, node: ast.expr, name: str) -> None:
        event = Event(kind, node, name, self.context)
        (self.function.events if self.function else self.module.module_events).append(event)

    # -- statements ----------------------------------------------------------------------------

    def _import(self, node: ast.Import) -> None:
        for one in node.names:
            if one.asname:
                self.aliases[one.asname] = one.name
            else:
                root = one.name.partition(".")[0]
                self.aliases[root] = root

    def _import_from(self, node: ast.ImportFrom) -> None:
        base = "." * node.level + (node.module or "")
        for one in node.names:
            self.aliases[one.asname or one.name] = f"{base}.{one.name}" if base else one.name

    def _class(self, node: ast.ClassDef) -> None:
        for one in (*node.decorator_list, *node.bases):
            self.eval(one)
        bases = tuple(self.module.name_of(base) for base in node.bases)
        local = [self.module.classes[base] for base in bases if base in self.module.classes]
        here = Class(
            node.name,
            node,
            bases,
            any(names.MODULE_BASES.search(base) for base in bases)
            or any(one.is_module for one in local),
            any(names.LIGHTNING.search(base) for base in bases)
            or any(one.is_lightning for one in local),
        )
        for parent in local:
            here.attributes.update(parent.attributes)
        self.module.classes[node.name] = here
        speaking = {
            id(one)
            for one in node.body
            if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef) and self._speaks(one)
        }
        folds = (self.trains and "Embedding(" in self.module.text) or (
            "BatchNorm" in self.module.text and "Conv" in self.module.text
        )
        for statement in node.body:
            if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
                # what the others' names are, and who calls them in each step
                frames = statement.name in ("__init__", "setup", "forward", "training_step")
                read = id(statement) in speaking or (frames and bool(speaking or folds))
                self._define(statement, here, read=read)
            elif isinstance(statement, ast.ClassDef):
                self._class(statement)
            elif isinstance(statement, ast.Assign | ast.AnnAssign) and statement.value is not None:
                self.eval(statement.value)

    def _speaks(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
        """Return whether the text of a function holds anything rules are about."""
        text, first = self.module.text, self.starts[min(node.lineno, len(self.starts) - 1)]
        last = (node.end_lineno or node.lineno) + 1
        end = self.starts[last] if last < len(self.starts) else len(text)
        find = text.find
        for word in names.TRIGGERS:
            if find(word, first, end) >= 0:
                return True
        for some, others in names.TOGETHER:
            if any(find(word, first, end) >= 0 for word in some) and any(
                find(word, first, end) >= 0 for word in others
            ):
                return True
        if self.trains and find("Embedding(", first, end) >= 0:
            return True
        if find("where(", first, end) >= 0 and names.WHERE.search(text, first, end):
            return True
        return names.MASK.search(text, first, end) is not None

    def _calls_model(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
        first = self.starts[min(node.lineno, len(self.starts) - 1)]
        last = (node.end_lineno or node.lineno) + 1
        end = self.starts[last] if last < len(self.starts) else len(self.module.text)
        return self.module.text.find("odel(", first, end) >= 0

    def _define(
        self,
        node: ast.FunctionDef | ast.AsyncFunctionDef,
        owner: Class | None = None,
        *,
        read: bool | None = None,
    ) -> None:
        decorators, no_grad, compiled, serves = [], False, False, False
        for one in node.decorator_list:
            said = one.func if isinstance(one, ast.Call) else one
            name = self.module.name_of(said)
            if name == "functools.partial" and isinstance(one, ast.Call) and one.args:
                name = self.module.name_of(one.args[0])
            decorators.append(name)
            no_grad = no_grad or name in names.NO_GRAD
            compiled = compiled or name == "torch.compile"
            serves = serves or names.ROUTE.search(name) is not None
            if isinstance(one, ast.Call):
                self.eval(one)
        outer = self.function
        parts = [outer.qualname] if outer else []
        parts += [owner.name] if owner else []
        function = Function(
            node.name, ".".join((*parts, node.name)), node, owner, outer, tuple(decorators),
            no_grad, compiled, serves=serves,
        )  # fmt: skip
        for default in (*node.args.defaults, *node.args.kw_defaults):
            if default is not None:
                self.eval(default)
        if owner is not None:
            owner.methods[node.name] = function
        else:
            self.by_name.setdefault(node.name, function)
            if outer is not None:
                self.scopes[-1].setdefault(node.name, UNKNOWN)
        self.module.functions.append(function)
        speaks = read
        if read is None:
            speaks = self._speaks(node) or (owner is None and self._calls_model(node))
        if compiled or serves or speaks:
            self.waiting.append((function, list(self.scopes)))

    def _assign(self, node: ast.Assign) -> None:
        value = self.eval(node.value)
        if isinstance(node.value, ast.Call) and self.module.calls:
            last = self.module.calls[-1]
            if last.node is node.value and len(node.targets) == 1:
                last.target = path_of(node.targets[0])
                if value.kind == "clock":
                    self._rename_clock(last)
        for one in node.targets:
            self._environ(node, one, node.value)
            path = path_of(one)
            if path:
                self.module.assigns.append(Assign(node, "=", path, value, node.value, self.context))
            kept = value.but(of=path) if value.kind == "clock" else value
            if isinstance(node.value, ast.Name | ast.Attribute) or value.kind != "list":
                self.target(one, kept)
            else:
                self.target(one, value)

    def _rename_clock(self, call: Call) -> None:
        events = self.function.events if self.function else self.module.module_events
        for event in reversed(events):
            if event.node is call.node:
                event.name = call.target
                return

    def _environ(self, node: ast.stmt, target: ast.expr, value: ast.expr) -> None:
        if isinstance(target, ast.Subscript) and isinstance(target.slice, ast.Constant):
            name = self.module.name_of(target.value)
            if name == "os.environ":
                self.module.environ.append((node, str(target.slice.value), value, self.context))

    def _annotated(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            value = self.eval(node.value)
            said = self._annotation(node.annotation)
            self.target(node.target, value if value.kind != "unknown" or said is None else said)

    def _augmented(self, node: ast.AugAssign) -> None:
        value = self.eval(node.value)
        path = path_of(node.target)
        old = UNKNOWN
        if isinstance(node.target, ast.Name | ast.Attribute):
            load = self.lookup(path) if isinstance(node.target, ast.Name) else None
            old = load or self.eval(node.target)
        else:
            self.target(node.target, UNKNOWN)
        if path:
            self.module.assigns.append(Assign(node, "+=", path, value, node.value, self.context))
            result = _together(old, value)
            if isinstance(node.target, ast.Name):
                self.scopes[-1][path] = result
            elif path.startswith("self.") and self.function and self.function.owner:
                self.function.owner.attributes[path[5:]] = result

    def _bind_targets(self, target: ast.expr, iterated: ast.expr, value: Value, loop: Loop) -> None:
        found = [one.id for one in ast.walk(target) if isinstance(one, ast.Name)]
        loop.targets = frozenset(found)
        if value.of in ("enumerate", "zip") and value.items:
            if isinstance(target, ast.Tuple):
                for index, one in enumerate(target.elts):
                    inner = value.items[index] if index < len(value.items) else UNKNOWN
                    self.target(one, inner)
            else:
                self.target(target, UNKNOWN)
            return
        if value.kind == "loader":
            self._all(target, _element(value))
        elif value.kind == "tensor":
            # items of a batch, or rows of a tensor
            self._all(target, value)
        elif isinstance(iterated, ast.Call) and path_of(iterated.func) == "range":
            self.target(target, HOST)
            loop.n_constant = turns(iterated)
        elif value.kind == "list" and value.items and not value.of:
            kinds = {one.kind for one in value.items}
            loop.n_constant = len(value.items) if isinstance(iterated, ast.List) else None
            self.target(target, value.items[0] if len(kinds) == 1 else UNKNOWN)
        elif isinstance(iterated, ast.Tuple):
            loop.n_constant = len(iterated.elts)
            self.target(target, UNKNOWN)
        elif value.kind == "params":
            self._all(target, Value("tensor", MAYBE, of="parameter"))
        else:
            self._all(target, UNKNOWN)

    def _all(self, target: ast.expr, value: Value) -> None:
        if isinstance(target, ast.Tuple | ast.List):
            for one in target.elts:
                self._all(one, value)
        else:
            self.target(target, value)

    def _for(self, node: ast.For | ast.AsyncFor) -> None:
        iterated = self.eval(node.iter)
        loop = Loop(node, self.context.loop, self.function, iterated, goes_over(node.iter))
        self._enter(loop, node.body, node)
        self.block(node.orelse)

    def _enter(self, loop: Loop, body: list[ast.stmt], node: ast.For | ast.AsyncFor | ast.While
               ) -> None:  # fmt: skip
        self.module.loops.append(loop)
        self.module.loop_contexts[loop] = self.context
        saved = self.context
        self.context = self._inside(
            loop=loop,
            # what happens in a loop that itself runs now and then: its own steps are hot
            rare=False if _is_named_loader(loop) else saved.rare,
            modulo=False,
        )
        if isinstance(node, ast.For | ast.AsyncFor):
            self._bind_targets(node.target, node.iter, loop.iterates, loop)
        else:
            self._test(node.test, "while")
        self.block(body)
        self.context = saved

    def _while(self, node: ast.While) -> None:
        loop = Loop(node, self.context.loop, self.function)
        self._enter(loop, node.body, node)
        self.block(node.orelse)

    def _if(self, node: ast.If) -> None:
        self._test(node.test, "if")
        rare = is_rare(node.test)
        modulo = takes_remainder(node.test)
        side = is_switch(node.test)
        old = self.context
        self.within(
            self._inside(
                rare=old.rare or rare or ends(node.body),
                aside=old.aside or side,
                modulo=old.modulo or modulo,
            ),
            node.body,
        )
        otherwise = is_rare(node.test, negated=True)
        self.within(self._inside(rare=old.rare or otherwise or ends(node.orelse)), node.orelse)

    def _with(self, node: ast.With | ast.AsyncWith) -> None:
        inside = self.context
        saved = self.context
        for item in node.items:
            value = self.eval(item.context_expr)
            expression = item.context_expr
            call = self.module.calls[-1] if isinstance(expression, ast.Call) else None
            if call is not None and call.node is expression:
                self.module.withs.append((item, call, saved, node))
                if call.name in names.NO_GRAD or (
                    call.name == "torch.set_grad_enabled"
                    and literal(expression.args[0] if expression.args else None) is False
                ):
                    inside = self._inside(no_grad=True)
                    self.context = inside
                if call.attr == "enable_grad":
                    inside = self._inside(no_grad=False)
                    self.context = inside
                if call.attr in ("no_sync", "accumulate"):
                    inside = self._inside(in_no_sync=True)
                    self.context = inside
            elif "no_sync" in ast.dump(expression):
                inside = self._inside(in_no_sync=True)
                self.context = inside
            if item.optional_vars is not None:
                self.target(item.optional_vars, value)
        self.block(node.body)
        self.context = saved

    def _try(self, node: Any) -> None:
        self.block(node.body)
        for handler in node.handlers:
            self.within(self._inside(rare=True), handler.body)
        self.block(node.orelse)
        self.block(node.finalbody)

    def _return(self, node: ast.Return) -> None:
        value = self.eval(node.value) if node.value is not None else HOST
        if self.function is not None:
            self.function.returns.append((node, value))

    def _raise(self, node: ast.Raise) -> None:
        saved = self.context
        self.context = self._inside(rare=True)
        if node.exc is not None:
            self.eval(node.exc)
        self.context = saved

    def _assert(self, node: ast.Assert) -> None:
        self._test(node.test, "assert")
        saved = self.context
        self.context = self._inside(rare=True)
        if node.msg is not None:
            self.eval(node.msg)
        self.context = saved

    def _delete(self, node: ast.Delete) -> None:
        for one in node.targets:
            path = path_of(one.value if isinstance(one, ast.Subscript) else one)
            for loop in self.context.loops():
                loop.cleared.add(path)

    def _match(self, node: ast.Match) -> None:
        self.eval(node.subject)
        for case in node.cases:
            self.block(case.body)


# by type of node; of the class, not of its objects: a file's facts must go when it is done
_EXPRESSIONS: dict[type, Callable[[_Walker, Any], Value]] = {
    ast.Name: _Walker._name,
    ast.Attribute: _Walker._attribute,
    ast.Call: _Walker._call,
    ast.Constant: lambda _walker, _node: HOST,
    ast.Subscript: _Walker._subscript,
    ast.BinOp: _Walker._binary,
    ast.UnaryOp: _Walker._unary,
    ast.Compare: _Walker._compare,
    ast.BoolOp: _Walker._boolean,
    ast.IfExp: _Walker._conditional,
    ast.Tuple: _Walker._tuple,
    ast.List: _Walker._list,
    ast.ListComp: _Walker._comprehension,
    ast.SetComp: _Walker._comprehension,
    ast.GeneratorExp: _Walker._comprehension,
    ast.DictComp: _Walker._comprehension,
    ast.JoinedStr: _Walker._joined,
    ast.NamedExpr: _Walker._walrus,
    ast.Lambda: _Walker._lambda,
    ast.Dict: _Walker._dict,
    ast.Await: lambda walker, node: walker.eval(node.value),
    ast.Starred: lambda walker, node: walker.eval(node.value),
    ast.Yield: _Walker._yield,
    ast.YieldFrom: _Walker._yield,
}
_STATEMENTS: dict[type, Callable[[_Walker, Any], object]] = {
    ast.Import: _Walker._import,
    ast.ImportFrom: _Walker._import_from,
    ast.FunctionDef: _Walker._define,
    ast.AsyncFunctionDef: _Walker._define,
    ast.ClassDef: _Walker._class,
    ast.Assign: _Walker._assign,
    ast.AnnAssign: _Walker._annotated,
    ast.AugAssign: _Walker._augmented,
    ast.For: _Walker._for,
    ast.AsyncFor: _Walker._for,
    ast.While: _Walker._while,
    ast.If: _Walker._if,
    ast.With: _Walker._with,
    ast.AsyncWith: _Walker._with,
    ast.Try: _Walker._try,
    ast.Expr: lambda walker, node: walker.eval(node.value),
    ast.Return: _Walker._return,
    ast.Raise: _Walker._raise,
    ast.Assert: _Walker._assert,
    ast.Delete: _Walker._delete,
    ast.Match: _Walker._match,
}
if hasattr(ast, "TryStar"):
    _STATEMENTS[ast.TryStar] = _Walker._try


@lru_cache(maxsize=1 << 14)
def _named(name: str) -> Value | None:
    """Return what people mean by a name."""
    if names.LOADER.match(name):
        return _A_LOADER
    if names.MODULE.match(name) and name != "generator":
        return _A_MODULE
    if name in ("optimizer", "optim"):
        return _AN_OPTIMIZER
    return None


@lru_cache(maxsize=1 << 14)
def _named_callee(name: str) -> Value:
    if names.BUILDER.match(name):
        return UNKNOWN
    if names.MODULE.match(name) and name != "generator":
        return _A_MODULE
    return UNKNOWN


def _is_named_loader(loop: Loop) -> bool:
    return loop.iterates.kind == "loader"


def is_optimizer_step(call: Call) -> bool:
    """Return whether ``x.step()`` is an optimizer's (or a gradient scaler's)."""
    if call.receiver.kind == "optimizer":
        return True
    owner = call.owner
    last = path_of(owner).rpartition(".")[2] if owner is not None else ""
    if isinstance(owner, ast.Subscript):
        last = path_of(owner.value).rpartition(".")[2]
    if re.search(r"scaler", last):
        return True
    return bool(names.OPTIMIZER.match(last)) and "schedul" not in last


def _element(value: Value) -> Value:
    """Return one element of what is iterated."""
    if value.kind == "loader":
        if value.of == "enumerate":
            return value.items[1] if value.items else UNKNOWN
        return _DATA.but(pinned=value.pinned)
    if value.kind == "tensor":
        return value
    if value.kind == "params":
        return Value("tensor", MAYBE, of="parameter")
    if value.kind == "list" and value.items and not value.of:
        kinds = {one.kind for one in value.items}
        return value.items[0] if len(kinds) == 1 else UNKNOWN
    return UNKNOWN


def _together(left: Value, right: Value) -> Value:
    """Return what an operator gives on two operands."""
    if left.kind == "tensor" or right.kind == "tensor":
        tensors = [one for one in (left, right) if one.kind == "tensor"]
        device, grad = placed(tensors)
        others = [one for one in (left, right) if one.kind not in ("tensor", "host", "numpy")]
        return Value(
            "tensor",
            max(device, MAYBE if others else CPU) if device > CPU else device,
            grad=grad,
            scalar=all(one.scalar for one in tensors) and not others,
            guess=all(one.guess for one in tensors),
            data=all(one.data for one in tensors),
            mask=left.mask and right.mask,
        )
    if left.kind == "clock" or right.kind == "clock":
        return HOST
    if left.kind == "numpy" or right.kind == "numpy":
        return left if left.kind == "numpy" else right
    if left.kind == "list" or right.kind == "list":
        return _LIST
    if left.kind == "host" and right.kind == "host":
        return HOST
    return UNKNOWN
