"""Numbers in float64 get into the work of each step.

Looks like: ``x.double()`` or ``x.to(torch.float64)`` in a loop of steps or in ``forward``;
    ``torch.from_numpy`` or ``torch.tensor`` of an array that NumPy made in float64, used in steps;
    ``model.double()`` in a file with a loop of steps; ``set_default_dtype(torch.float64)``; a
    parameter that ``forward`` converts to another dtype in every call (``self.weight.float()``), if it
    is a matrix; ``x.float().masked_fill(mask, v).type_as(x)``; a tensor that an object was made with
    and that steps convert (``self.vectors.to(query.dtype)``).
Slow because: one float64 operand turns everything computed from it into float64, which moves twice
    the bytes and has a small fraction of the arithmetic throughput on most devices.
Fix: ``.astype(np.float32)`` before, ``dtype=torch.float32`` in, or ``.float()`` after the
    conversion.
Quiet when: it is one number, or cast before it is used; where NumPy's dtype is not known; statistics of detached values
    on the CPU; where a comment, L-BFGS, an integrator, a solver or derivatives by inputs show that digits matter.
Source: PyTorch documentation, "Type promotion".
"""

import ast
import re
from collections.abc import Iterator
from itertools import takewhile

from torchtriage.diagnose.lint.base import Fix, Hit, Module, Rule, SourceCall, SourceFunction, is_step, text_of
from torchtriage.diagnose.lint.syntax import arguments, holds, is_self, keyword, literal
from torchtriage.diagnose.lint.torch_names import FACTORIES, words

RULE = Rule("CPY012", "redundant-dtype-cast", "copy", "Redundant casts, or accidental float64", "low")

FIX = Fix(
    text="Keep the numbers in float32.",
    code="""weights = torch.from_numpy(weights.astype(np.float32))
weights = torch.tensor(weights, dtype=torch.float32)""",
    link="https://docs.pytorch.org/docs/stable/tensor_attributes.html#type-promotion-doc",
)
_ONCE = Fix(
    text="Convert it once, where it is created.",
    code="self.vectors = torch.from_numpy(stored).float()",
    link="https://docs.pytorch.org/docs/stable/generated/torch.Tensor.to.html",
)

_DOUBLE = re.compile(r"^torch\.(float64|double)$")
_DTYPE = re.compile(r"^torch\.(float32|float16|bfloat16|half|float)$")
_CASTS = frozenset(["float", "half", "bfloat16", "to", "type", "type_as", "long", "int", "bool"])
_STORED = re.compile(r"from_numpy|\bload\(|as_tensor|half|float16|int8")
_FULL = re.compile(r"float32|\.float\(\)$")
# what NumPy makes in float64 by default
_WIDE = re.compile(
    r"^numpy\.(zeros|ones|linspace|logspace|eye|identity|hanning|hamming|blackman"
    r"|random\.(rand|randn|random|uniform|normal|standard_normal))$"
)
_KEEPS = words("reshape mean std sum copy transpose ravel flatten repeat")  # methods that keep the type
_WHOLE = re.compile(r"^numpy\.(bincount|arange|argsort|argmax|argmin|random\.randint|nonzero)$")
_ROOTS = re.compile(
    r"^numpy\.(sqrt|exp|log|log2|log10|sin|cos|tan|power|mean|std|divide|clip"
    r"|maximum|minimum|abs|square|reshape|stack|concatenate)$"
)


def find(module: Module) -> Iterator[Hit]:
    """Yield casts to float64 in hot code, and arrays of float64 that hot code uses."""
    text = module.text
    if "double" in text or "float64" in text:
        for call in module.sent("double", "to", "type"):
            if (
                call.context.hot
                and call.receiver.kind == "tensor"
                and not call.receiver.scalar
                and (call.attr == "double" or _names_double(module, call))
                and not _goes_to_host(call)
                and not (module.on_cpu and not call.receiver.grad)
            ):
                yield Hit(call.node, f"float64 from here on: {text_of(call.node)}", call.attr)
            elif (
                call.receiver.kind == "module"
                and not call.context.seldom
                and (call.attr == "double" or _names_double(module, call))
                and any(loop.steps for loop in module.loops)
                and not _on_purpose(module, call)
            ):
                yield Hit(call.node, f"all work in float64: {text_of(call.node)}", call.attr)
    yield from _weights(module)
    for call in module.sent("float", "double"):
        selecting = call.user
        if selecting is None or selecting.attr not in _SELECTS or selecting.owner is not call.node:
            continue
        back = selecting.user
        if call.context.often and back is not None and back.attr in _BACK and back.owner is selecting.node:
            message = f"cast there and back, only to select {call.context.often}: {text_of(back.node)}"
            yield Hit(back.node, message, call.attr, fix=_AS_IT_IS)
    for call in module.called("torch.set_default_dtype"):
        if _names_double(module, call) and not (call.context.seldom or _on_purpose(module, call)):
            yield Hit(call.node, "every tensor is created in float64 from here on", call.attr, severity="medium")
    if "numpy" in text:
        for call in module.called("torch.from_numpy", "torch.tensor", "torch.as_tensor"):
            if keyword(call.node, "dtype") is None and call.node.args:
                scope = call.context.function
                wide = _width(module, call.node.args[0], scope) == "float64"
                if wide and not _cast(call) and _used_hot(module, call):
                    yield Hit(call.node, f"NumPy's float64 gets into every step: {text_of(call.node)}", call.attr)


_SELECTS = words("masked_fill masked_fill_ index_select gather flip roll transpose permute expand repeat where")
_BACK = frozenset(["type_as", "half", "bfloat16"])
_AS_IT_IS = Fix(
    text="Select in the original dtype: no value changes.",
    code="scores = scores.masked_fill(padding, float('-inf'))   # not .float().masked_fill(…).type_as(scores)",
    link="https://docs.pytorch.org/docs/stable/generated/torch.Tensor.masked_fill.html",
)

_PRECISE = re.compile(r"\b(precis|float64\b|double\b|round-?off|cancel|stab|diverg|converg)", re.IGNORECASE)

# line searches, integrators, derivatives of derivatives, solvers, and differences divided by a small step
_NEEDS_DIGITS = re.compile(
    r"\bLBFGS\(|\bodeint|\bsolve_ivp|gradcheck|\bautograd\.grad\(|\b(?:jacobian|hessian|jacrev|jacfwd)\("
    r"|\blinalg\.(?:solve\w*|eigh?\w*|cholesky\w*|svd\w*|inv|lstsq|pinv)\(|/ *1e-"
)


def _on_purpose(module: Module, call: SourceCall) -> bool:
    """Return whether a program needs the digits: by what it computes, or by a comment that says so."""
    if _NEEDS_DIGITS.search(module.text):
        return True
    rows = module.text.split("\n")[max(call.node.lineno - 3, 0) : call.node.lineno + 1]
    return any(_PRECISE.search(row.partition("#")[2]) for row in rows)


def _weights(module: Module) -> Iterator[Hit]:
    """Yield casts of what an object was made with, the same in every call: a module's parameters, other tensors."""
    for call in module.sent("float", "half", "bfloat16", "to"):
        function, owner = call.context.function, call.owner
        if function is None or function.owner is None or not isinstance(owner, ast.Attribute) or call.context.rare:
            continue
        if not is_self(owner.value):
            continue
        given = arguments(call.node)
        if call.attr == "to" and not any(
            _DTYPE.match(module.name_of(item)) or getattr(item, "attr", "") == "dtype" for item in given
        ):
            continue
        methods = function.owner.methods
        named = module.assigns_to(f"self.{owner.attr}")
        made = [assign for assign in named if assign.context.function in methods.values()]
        if is_step(function) and any(_is_matrix(module, assign.expression) for assign in made):
            yield Hit(call.node, f"a weight is converted again in every call: {text_of(call.node)}", call.attr)
        elif (
            call.context.hot
            and call.receiver.kind == "tensor"
            and not function.owner.is_module  # its tensors may be small, or in another dtype by autocast
            and len(made) == 1
            and made[0].how == "="
            and made[0].context.function is methods.get("__init__")
            and _is_narrow(text_of(made[0].expression, 500))
        ):
            message = f"the same tensor is converted again in every step: {text_of(call.node)}"
            yield Hit(call.node, message, call.attr, fix=_ONCE)


def _is_narrow(made: str) -> bool:
    """Return whether a tensor may have a smaller dtype than steps compute in: as it was stored, or said so."""
    return _STORED.search(made) is not None and _FULL.search(made) is None


def _is_matrix(module: Module, node: ast.expr) -> bool:
    """Return whether an attribute is a parameter of two dimensions or more: the scale of a norm costs nothing."""
    return module.name_called(node) == "torch.nn.Parameter" and any(
        isinstance(item, ast.Call) and module.name_of(item.func) in FACTORIES and len(item.args) > 1
        for item in ast.walk(node)
    )


def _names_double(module: Module, call: SourceCall) -> bool:
    given = arguments(call.node)
    return any(_DOUBLE.match(module.name_of(item)) is not None for item in given)


def _goes_to_host(call: SourceCall) -> bool:
    """Return whether the number is read or written down, not computed with."""
    return any(user.attr in ("cpu", "numpy", "item", "tolist") for user in call.users())


def _cast(call: SourceCall) -> bool:
    moves = takewhile(lambda user: user.attr in ("cuda", "to", *_CASTS), call.users())
    return any(user.attr != "cuda" and (user.attr != "to" or _says_dtype(user)) for user in moves)


def _says_dtype(call: SourceCall) -> bool:
    if keyword(call.node, "dtype") is not None or len(call.node.args) > 1:
        return True
    return bool(call.node.args) and re.search(r"dtype|float|half|weight|\bx\b", text_of(call.node.args[0])) is not None


def _width(module: Module, node: ast.expr, scope: SourceFunction | None, depth: int = 0) -> str:
    """Return what is sure of an array's dtype: ``float64``, ``int``, ``number``, or nothing."""
    if depth > 8:
        return ""
    if isinstance(node, ast.Constant):
        return "number" if isinstance(node.value, int | float) else ""
    if isinstance(node, ast.Name):
        made = [assign for assign in module.assigns_to(node.id) if assign.context.function in (scope, None)]
        own = [item for item in made if item.context.function is scope] or made
        widths = {
            _width(module, item.expression, item.context.function, depth + 1) if item.how == "=" else "" for item in own
        }
        return widths.pop() if len(widths) == 1 else ""
    if isinstance(node, ast.BinOp):
        sides = {_width(module, item, scope, depth + 1) for item in (node.left, node.right)}
        if "float64" in sides:
            return "float64"
        arrays = sides - {"number"}
        if isinstance(node.op, ast.Div) and arrays == {"int"}:
            return "float64"
        if isinstance(node.op, ast.Div) and "int" in sides and _is_count(node, sides):
            return "float64"
        return sides.pop() if len(sides) == 1 else ("int" if sides == {"int", "number"} else "")
    if isinstance(node, ast.Call):
        return _made(module, node, scope, depth)
    return ""


def _is_count(node: ast.BinOp, sides: set[str]) -> bool:
    """Return whether whole numbers are divided by a count: ``np.bincount(x) / len(x)``."""
    return "" in sides and (
        isinstance(node.right, ast.Call)
        and re.search(r"(^|\.)(len|numel|sum|size)\(", ast.unparse(node.right)) is not None
    )


def _made(module: Module, node: ast.Call, scope: SourceFunction | None, depth: int) -> str:
    name = module.name_of(node.func)
    dtype = keyword(node, "dtype")
    if dtype is not None:
        made = module.name_of(dtype)
        return "float64" if made in ("numpy.float64", "numpy.double", "float") else ""
    if isinstance(node.func, ast.Attribute) and node.func.attr == "astype":
        given = node.args[0] if node.args else None
        made = module.name_of(given) if given is not None else ""
        wide = made in ("numpy.float64", "numpy.double", "float")
        return "float64" if wide or literal(given) == "float64" else ""
    if _WIDE.match(name):
        return "float64" if len(node.args) < 2 or "zeros" not in name else ""
    if _WHOLE.match(name):
        whole = all(isinstance(literal(arg), int | type(...)) for arg in node.args)
        return "int" if whole and keyword(node, "weights") is None else ""
    if _ROOTS.match(name) and node.args:
        inner = _width(module, node.args[0], scope, depth + 1)
        keeps = name.rpartition(".")[2] in ("clip", "maximum", "minimum", "abs", "square")
        return "float64" if inner == "float64" or (inner == "int" and not keeps) else ""
    if isinstance(node.func, ast.Attribute) and node.func.attr in _KEEPS:
        inner = _width(module, node.func.value, scope, depth + 1)
        return inner if inner == "float64" else ""
    return ""


def _used_hot(module: Module, call: SourceCall) -> bool:
    """Return whether steps compute with the result: here, under its name, or after a return."""
    if call.context.hot:
        return True
    if call.context.rare:
        return False
    function = call.context.function
    names = [(target, function) for target in [_target(module, call.node)] if target]
    if function is not None and any(
        item.value is not None and item.value is _outer(call) for item, _ in function.returns
    ):
        names += [
            (call.target, call.context.function) for call in module.calls if call.callee is function and call.target
        ]
    return any(_in_steps(module, name, scope) for name, scope in names)


def _outer(call: SourceCall) -> ast.Call:
    while call.user is not None and call.user.attr in ("cuda", "to", "view", "reshape"):
        call = call.user
    return call.node


def _target(module: Module, node: ast.Call) -> str:
    made = (item.target for item in module.assigns if item.how == "=" and holds(item.expression, node))
    return next(made, "")


def _in_steps(module: Module, name: str, scope: SourceFunction | None) -> bool:
    """Return whether a loop of steps of this scope reads a name without casting it."""
    for loop in module.loops:
        if not loop.steps or loop.function is not scope:
            continue
        cast = {
            id(node.func.value)
            for node in ast.walk(loop.node)
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _CASTS
        }
        for item in ast.walk(loop.node):
            if isinstance(item, ast.Name) and item.id == name and id(item) not in cast:
                return True
    return False
