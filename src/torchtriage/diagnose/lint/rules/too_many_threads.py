"""More threads than cores share the work of an operator.

Looks like: ``torch.set_num_threads(16)`` or ``OMP_NUM_THREADS=32`` with a fixed number, or a
    multiple of ``os.cpu_count()``.
Slow because: threads that have no core of their own wait for each other in every operator: small
    operators take several times as long.
Fix: leave the number to PyTorch, or take the cores that the process may use.
Quiet when: the number is eight or less, or comes from elsewhere.
Source: PyTorch documentation, "CPU threading".
"""

import ast
from collections.abc import Iterator

from torchtriage.diagnose.lint.base import Fix, Hit, Module, Rule, literal, text_of
from torchtriage.diagnose.lint.syntax import attributes_in

RULE = Rule("CFG101", "too-many-threads", "config", "More threads than many machines have cores", "low")

FIX = Fix(
    text="Use the number of cores that the process may use.",
    code="torch.set_num_threads(len(os.sched_getaffinity(0)))   # or leave it out",
    link="https://docs.pytorch.org/docs/stable/notes/cpu_threading_torchscript_inference.html",
)

_MANY = 9
_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")


def find(module: Module) -> Iterator[Hit]:
    """Yield numbers of threads that are written down."""
    for call in module.called("torch.set_num_threads", "torch.set_num_interop_threads"):
        if call.context.seldom or not call.node.args:
            continue
        given = call.node.args[0]
        number = module.constant(given, call.context)
        if (isinstance(number, int) and number >= _MANY) or _multiplies(given):
            yield Hit(call.node, f"threads may outnumber the cores: {text_of(call.node)}", call.attr)
    for node, name, value, context in module.environ:
        setting = literal(value)
        if (
            name in _VARIABLES
            and isinstance(setting, str)
            and setting.isdigit()
            and int(setting) >= _MANY
            and not context.rare
        ):
            yield Hit(node, f"threads may outnumber the cores: {name}={setting}")


def _multiplies(node: ast.expr) -> bool:
    """Return whether it is a multiple of the number of cores."""
    return isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult) and "cpu_count" in attributes_in(node)
