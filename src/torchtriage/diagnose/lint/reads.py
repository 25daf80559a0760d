"""What the rules about reads of device values share."""

import ast
import re
from collections.abc import Iterator

from torchtriage.diagnose.lint.facts import Assign, Context, Module, SourceCall
from torchtriage.diagnose.lint.syntax import holds, names_in
from torchtriage.diagnose.lint.torch_names import words

_LOGGER = re.compile(r"(^|\.|_)(log|logger|logging|LOG|LOGGER|console|writer|tb|wandb|mlflow|run)$")
_LOG_METHODS = words("""
    info warning warn error critical exception log add_scalar add_scalars add_histogram log_metric log_metrics
    log_scalar
""")


def text_of(node: ast.AST, limit: int = 48) -> str:
    """Return the source of an expression, shortened to one line."""
    try:
        text = " ".join(ast.unparse(node).split())
    except RecursionError:
        return "…"
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def compiled(context: Context) -> bool:
    """Return whether code runs inside ``torch.compile``, directly or one call below."""
    function = context.function
    return function is not None and (function.compiled or function.compiled_by_caller)


def _is_logging(call: SourceCall) -> bool:
    """Return whether a call writes its arguments somewhere for people."""
    if call.attr == "print" and isinstance(call.node.func, ast.Name):
        return True
    if call.attr in ("set_postfix", "set_postfix_str", "set_description", "add_scalar", "add_scalars", "add_histogram"):
        return True
    if call.name in ("wandb.log", "mlflow.log_metric", "mlflow.log_metrics", "tqdm.write"):
        return True
    if call.name.startswith("logging.") and call.attr in _LOG_METHODS:
        return True
    # debug() writes nothing most of the time, but what str() makes for it is made
    shows = call.attr in _LOG_METHODS or (call.attr == "debug" and any(map(_is_text, call.node.args)))
    return shows and call.owner is not None and _LOGGER.search(text_of(call.owner)) is not None


def _is_text(node: ast.expr) -> bool:
    if isinstance(node, ast.JoinedStr):
        return True
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("str", "repr")


def logging_calls(module: Module) -> Iterator[SourceCall]:
    """Yield every call that prints or logs."""
    for call in module.calls:
        if _is_logging(call):
            yield call


def reads(module: Module) -> Iterator[tuple[ast.expr, Context, str]]:
    """Yield every read of a device scalar: where, in which context, and what reads it."""
    for call in module.sent("item"):
        receiver = call.receiver
        may_wait = receiver.on_device or (receiver.kind == "unknown" and receiver.readback is None)
        if may_wait and not call.node.args:
            yield call.node, call.context, "item"
    for call in module.sent("tolist"):
        loop = call.context.step_loop
        many = loop is not None and not (loop.trains or loop.over_loader)  # else CPY006 says so
        if call.receiver.known_on_device and (call.receiver.scalar or many):
            yield call.node, call.context, "tolist"
    for call in module.sent("cpu", "numpy"):
        receiver = call.receiver
        if receiver.on_device and receiver.scalar and call.value.kind != "unknown":
            yield call.node, call.context, call.attr
    for call in module.called("float", "int", "bool", "str", "repr"):
        if call.arguments and call.arguments[0].known_on_device and isinstance(call.node.func, ast.Name):
            yield call.node, call.context, call.attr
    for call in module.called("max", "min"):
        if len(call.node.args) > 1 and any(item.known_on_device for item in call.arguments):
            yield call.node, call.context, call.attr
    for call in module.called("torch.equal", "torch.allclose", "torch.is_nonzero"):
        if any(argument.known_on_device for argument in call.arguments):
            yield call.node, call.context, call.attr
    for test in module.tests:
        if test.value.known_on_device and not _is_call_of(test.node):
            yield test.node, test.context, test.kind
    for item in module.formats:
        if item.value.known_on_device and item.value.scalar:
            yield item.node, item.context, item.kind


_OUTSIDE = re.compile(
    r"(^|_)(step|act|send\w*|write\w*|publish\w*|put\w*|execute|move\w*|apply\w*|command|set_\w+|append|emit|reply|speak"
    r"|respond|render|draw|show)$"
)


def delivers(module: Module, node: ast.expr, context: Context) -> bool:
    """Return whether a read hands a result of inference on: to a robot, an environment, a caller.

    The host needs it in this step, whatever it costs. Over the batches of a loader it can wait.
    """
    function, loop = context.function, context.step_loop
    if _moves_world(module, node, context):
        return True
    if loop is not None and (loop.trains or loop.over_loader):
        return False
    if function is not None and (function.has_backward or (function.owner is not None and function.owner.is_lightning)):
        return False
    if function is not None and any(holds(returned, node) for returned, _ in function.returns):
        return True
    call = module.calls_by_node.get(node)
    if call is not None and any(_OUTSIDE.search(user.attr) for user in call.users()):
        return True
    names = {assign.target for assign in _kept_by(module, node) if assign.how == "="}
    return bool(names) and any(
        _OUTSIDE.search(other.attr) and names & names_in(other.node) for other in module.calls_by_function[function]
    )


_WORLD = re.compile(r"(?:^|_)(?:[a-z0-9]{0,16}envs?|sim|simulator|world|game|robot|arm|plant|vehicle)(?:_|$)")


def _moves_world(module: Module, node: ast.expr, context: Context) -> bool:
    """Return whether a read is the action that an environment or a robot is waiting for."""
    names = {assign.target for assign in _kept_by(module, node)}
    return any(
        call.context.function is context.function
        and call.owner is not None
        and _WORLD.search(text_of(call.owner).rpartition(".")[2])
        and (names & names_in(call.node) or holds(call.node, node))
        for call in module.sent("step", "move", "write", "send", "act", "apply", "command")
    )


def _kept_by(module: Module, node: ast.expr) -> Iterator[Assign]:
    """Yield the assignments that an expression is a part of."""
    for assign in module.assigns:
        if assign.node.lineno <= node.lineno <= (assign.node.end_lineno or 0) and holds(assign.node, node):
            yield assign


def _is_call_of(node: ast.expr) -> bool:
    # bool(x.any()) and torch.equal(a, b) are reads of their own
    return isinstance(node, ast.Call) and (
        (isinstance(node.func, ast.Name) and node.func.id in ("bool", "float", "int"))
        or (isinstance(node.func, ast.Attribute) and node.func.attr in ("equal", "allclose"))
    )
