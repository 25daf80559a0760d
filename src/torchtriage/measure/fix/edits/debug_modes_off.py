"""Switch off what only a search for an error needs: anomaly detection, blocking launches, tracers of Python."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from torchtriage.core.names import word_list
from torchtriage.diagnose.lint.base import keyword, literal
from torchtriage.diagnose.lint.edits import SourceEdit
from torchtriage.diagnose.lint.facts import Module, SourceCall
from torchtriage.diagnose.lint.torch_names import words
from torchtriage.measure.fix.edits._switches import flag_off, taken_out
from torchtriage.measure.fix.proposal import Proposal, Site
from torchtriage.measure.fix.statements import complete, insert_after, unwrap

CODES = frozenset({"CFG044", "CFG046", "CFG103", "MSR101"})

CODES_ELSEWHERE = CODES
ANOMALY = tuple(
    f"torch.autograd.{name}"
    for name in word_list("""
    set_detect_anomaly detect_anomaly anomaly_mode.set_detect_anomaly anomaly_mode.detect_anomaly profiler.emit_nvtx
""")
)
TRACERS = word_list("""
    sys.setprofile sys.settrace threading.setprofile threading.settrace torch.cuda.memory._record_memory_history
    tracemalloc.start
""")
VARIABLES = words("""
    AMD_SERIALIZE_COPY AMD_SERIALIZE_KERNEL CUDA_LAUNCH_BLOCKING HIP_LAUNCH_BLOCKING PYTHONTRACEMALLOC
    TORCHDYNAMO_VERBOSE TORCH_COMPILE_DEBUG TORCH_DISTRIBUTED_DEBUG TORCH_LOGS
""")


def propose(site: Site) -> Iterator[Proposal]:
    """Yield the edits that switch modes of the file off: by their flag where they have one, else taken out."""
    module, code = site.module, site.finding.code
    if code in ("CFG044", "CFG103"):
        for call in module.called(*ANOMALY):
            yield from _off(module, call)
        for call in module.calls:
            flag = keyword(call.node, "detect_anomaly")
            if flag is not None:
                yield from flag_off(module, flag, "detect_anomaly")
        for node, name, value, _ in module.environ:
            if name in VARIABLES and literal(value) not in ("0", ""):
                yield from taken_out(module, node, name)
        for call in module.called("os.environ.setdefault", "os.putenv"):
            if call.node.args and literal(call.node.args[0]) in VARIABLES:
                yield from taken_out(module, call.node, str(literal(call.node.args[0])))
    if code == "CFG046" and "fill_uninitialized_memory" not in module.text:
        for call in module.called("torch.use_deterministic_algorithms"):
            yield from _unfilled(module, call)
    if code == "MSR101":
        for call in module.called(*TRACERS):
            snapshot = call.attr == "start" and "take_snapshot" in module.text
            if not snapshot and literal(call.node.args[0] if call.node.args else None) is not None:
                yield from taken_out(module, call.node, call.name)


def _off(module: Module, call: SourceCall) -> Iterator[Proposal]:
    mode = keyword(call.node, "mode") or keyword(call.node, "enabled")
    if mode is None and call.attr != "detect_anomaly" and call.node.args:
        mode = call.node.args[0]
    if mode is not None and not isinstance(mode, ast.Constant):
        yield from flag_off(module, mode, call.attr)
    elif mode is None or literal(mode):
        item = module.parents.get(call.node)
        block = module.parents.get(item) if isinstance(item, ast.withitem) else None
        if isinstance(item, ast.withitem) and isinstance(block, ast.With):
            edits = _without(module, block, item)
            if edits and item.optional_vars is None:
                yield Proposal(edits, f"remove {call.attr}")
        else:
            yield from taken_out(module, call.node, call.attr)


def _without(module: Module, block: ast.With, item: ast.withitem) -> tuple[SourceEdit, ...]:
    if len(block.items) == 1:
        return unwrap(module, block)
    at = block.items.index(item)
    other = block.items[at - 1] if at else block.items[1]
    first, last = item.context_expr, other.optional_vars or other.context_expr
    if at:
        begin, end = (last.end_lineno, last.end_col_offset), (first.end_lineno, first.end_col_offset)
    else:
        begin, end = (first.lineno, first.col_offset), (other.context_expr.lineno, other.context_expr.col_offset)
    return (SourceEdit(begin[0] or 0, begin[1] or 0, end[0] or 0, end[1] or 0, ""),)


def _unfilled(module: Module, call: SourceCall) -> Iterator[Proposal]:
    statement = module.parents.get(call.node)
    torch = ast.unparse(call.node.func).rpartition(".")[0]
    if isinstance(statement, ast.Expr) and torch and call.node.args and literal(call.node.args[0]) is not False:
        edit = insert_after(module, statement, f"{torch}.utils.deterministic.fill_uninitialized_memory = False")
        yield Proposal(complete([edit]), "leave new memory uninitialized")
