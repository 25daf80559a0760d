"""What rules about moves between host and device share: what is moved, and where to."""

from torchtriage.diagnose.lint.base import SourceCall
from torchtriage.diagnose.lint.syntax import destination, moves, path_of
from torchtriage.diagnose.lint.torch_names import MODULE, OPTIMIZER


def moved_path(call: SourceCall) -> str:
    """Return the dotted name of what a call moves, empty where it has none."""
    return path_of(call.owner) if call.owner is not None else ""


def goes(call: SourceCall) -> bool:
    """Return whether ``x.to(...)`` or ``x.cuda()`` moves to a device, in each step."""
    return call.context.hot and (call.attr == "cuda" or moves(call.node))


def leaves(call: SourceCall) -> bool:
    """Return whether ``x.to(...)`` or ``x.cpu()`` moves to the host, in each step."""
    return call.context.hot and (call.attr == "cpu" or destination(call.node) == "cpu")


def is_module(call: SourceCall, path: str) -> bool:
    """Return whether what is moved is a module or an optimizer, by what is known of it or by its name."""
    last = path.rpartition(".")[2]
    return call.receiver.kind == "module" or bool(MODULE.match(last) or OPTIMIZER.match(last))
