"""What to change: for graph breaks by PyTorch's type, for recompilations by the guard's class."""

from __future__ import annotations

import importlib.util
import json
import re
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from torchtriage.compile.logs.breaks import Break
from torchtriage.compile.logs.recompiles import Cause
from torchtriage.core.finding import Fix

_BREAKS_PAGE = (
    "https://docs.pytorch.org/docs/stable/user_guide/torch_compiler/compile/programming_model.graph_breaks_index.html"
)
_RECOMPILES_PAGE = (
    "https://docs.pytorch.org/docs/stable/user_guide/torch_compiler/compile/programming_model.recompilation.html"
)
_GB_PAGE = "https://meta-pytorch.github.io/compile-graph-break-site/gb/{}.html"

# Ids of PyTorch's registry, for logs that have none and are read where torch is not installed.
_IDS = {
    "Attempted to call function marked as skipped": "GB0007",
    "Attempted to inline function marked as skipped": "GB0008",
    "Call to `torch._dynamo.graph_break()`": "GB0025",
    "Data dependent operator": "GB0033",
    "Data-dependent branching": "GB0170",
    "Dynamic shape operator": "GB0036",
    "Dynamo recompile limit exceeded": "GB0039",
    "Failed to trace builtin operator": "GB0059",
    "Skip calling `torch.compiler.disable()`d function": "GB0098",
    "Skip inlining `torch.compiler.disable()`d function": "GB0099",
    "Unsupported Tensor.item() call with capture_scalar_outputs=False": "GB0124",
    "Unsupported context manager": "GB0142",
    "Unsupported method call": "GB0156",
    "logging.Logger method not supported for non-export cases": "GB0291",
}
# What the type, or below it the context, begins with or names whole; first match counts. The long
# explanation is not looked at: it has words of everything in it.
_FIXES = (
    (
        r"builtin(?: operator)?:? [`']?print\b",
        "Print outside of the compiled function, or let the compiler move the call to its end.",
        "torch._dynamo.config.reorderable_logging_functions.add(print)",
    ),
    (
        r"^Data-dependent branching",
        "Decide on the device: compute both sides and choose, or use torch.cond.",
        "x = torch.where(x.sum() > 0, 2 * x, x)   # not: if x.sum() > 0: x = 2 * x",
    ),
    (
        r"^Data dependent operator$|\bTensor\.item\(\)|\b_local_scalar_dense\b",
        "Keep the value a tensor; where Python needs the number, read it outside, or let the compiler"
        " trace it as a symbol.",
        "torch._dynamo.config.capture_scalar_outputs = True",
    ),
    (r"\bTensor\.tolist\b", "Keep the values a tensor, or read them outside of the compiled function.", ""),
    (
        r"^Dynamic shape operator$",
        "Keep the shape fixed: torch.where or a mask instead of an index; or let the compiler trace"
        " sizes that depend on data.",
        "torch._dynamo.config.capture_dynamic_output_shape_ops = True",
    ),
    (
        r"^Dynamic shape operator \(no meta kernel\)",
        "Keep the shape fixed: torch.where or a mask instead of an index.",
        "",
    ),
    (
        r"^Call to .torch\._dynamo\.graph_break\(\)",
        "The break is asked for in the source: delete torch._dynamo.graph_break().",
        "",
    ),
    (
        r"^Call to .torch\._dynamo\.(?:skip_frame|step_unsupported)\(\)",
        "The break is asked for in the source: delete that call.",
        "",
    ),
    (
        r"\bcompiler\.disable\b|\b_dynamo\.disable\b",
        "The function called here is excluded from compilation: call it outside, or delete the decorator.",
        "",
    ),
    (
        r"\blogging\.Logger\b|\bmodule: logging\b",
        "Log outside of the compiled function, or tell the compiler to ignore the call.",
        "torch._dynamo.config.ignore_logger_methods.add(logging.Logger.info)",
    ),
    (
        r"\bmodule: _?warnings\b|\bwarnings\.warn\b",
        "Warn outside of the compiled function, or let the compiler move the call to its end.",
        "torch._dynamo.config.reorderable_logging_functions.add(warnings.warn)",
    ),
    (
        r"^Attempted to (?:call|inline) function marked as skipped",
        "What is called here cannot be traced: call it outside, or make it a custom operator.",
        '@torch.library.custom_op("mine::op", mutates_args=())',
    ),
    (
        r"\btrace_numpy=False\b",
        "The configuration disables tracing of numpy: enable it.",
        "torch._dynamo.config.trace_numpy = True",
    ),
    (
        r"^numpy\b|\bnumpy(?:\.\*)? function\b|\btorch\._numpy\b|^Unsupported ndarray\b"
        r"|^ndarray\.",
        "Use the torch function of the same name instead of numpy's.",
        "x = torch.log(x)   # not np.log",
    ),
    (
        r"\brecompile[_ ]limit\b|\bcache_size_limit\b",
        "Fix what causes the recompilations; the limit only ends them.",
        "",
    ),
    (
        r"^graph break in loop$",
        "A break in a loop leaves the whole function uncompiled: take what breaks out of the loop, or"
        " make the loop's body a function and compile that.",
        "",
    ),
    (
        r"^Backend compiler exception",
        "The backend failed on this graph: the message names the operator to replace.",
        "",
    ),
    (
        r"^async_op=True\b",
        "Call the collective without async_op: the compiler places the wait itself.",
        "torch.distributed.all_reduce(x)   # not async_op=True",
    ),
    (
        r"\bcontext ?managers?\b|\bGenericContextWrappingVariable\b",
        "Enter the context manager outside of the compiled function.",
        "",
    ),
    (
        r"^torch\.Generator\b",
        "Use the default generator inside of the compiled function, or draw the numbers outside.",
        "",
    ),
    (
        r"^Attempt to trace generator|\bsub-generator\b|^Generator reconstruction"
        r"|^infinite generator|^call_method on generator",
        "Build the values in a list before the compiled function.",
        "",
    ),
    (
        r"\bTensor\.backward\(\)|^backward\(\) with",
        "Call backward outside of the compiled function: its graph is compiled all the same.",
        "",
    ),
    (
        r"^(?:Unsupported )?setattr\b|^Failed to (?:mutate|set) tensor\b|^non-const setattr"
        r"|^Unsupported attribute assign|^HOP: Unsafe side effect|^nn\.Module mutation"
        r"|^P2POp mutation|^optimizer: pending mutation",
        "Return the value and store it outside of the compiled function.",
        "",
    ),
    (
        r"^Observed exception|^Failed to raise exception|^Caught non-Exception|^Exception with\b"
        r"|\bexception constructor$",
        "Handle the error outside of the compiled function; check its cause before the call.",
        "",
    ),
    (
        r"^Unsupported method call|^Unhandled (?:args for|tensor) method|\Acall_method\b"
        r"|^Unsupported Tensor\.\w+\(\) call",
        "Call the method outside of the compiled function, or use a tensor operation instead.",
        "",
    ),
    (
        r"\bC/C\+\+|^Failed to trace builtin operator|^unimplemented builtin op\b|\bpybind\b"
        r"|^can't handle functions not implemented in python",
        "Call it outside of the compiled function, or make it a custom operator.",
        '@torch.library.custom_op("mine::op", mutates_args=())',
    ),
)
_GENERIC = (
    "Move this line out of the compiled function, or write it with tensor operations;"
    " fullgraph=True makes it an error while you do."
)


@cache
def _registry() -> dict[str, tuple[str, str, tuple[str, ...]]]:
    """Return the installed torch's registry, which is read and not imported: by type id, explanation and hints."""
    try:
        spec = importlib.util.find_spec("torch")
        if spec is None or spec.origin is None:
            return {}
        file = Path(spec.origin).parent / "_dynamo" / "graph_break_registry.json"
        rows = json.loads(file.read_text("utf-8"))
        return {
            str(entry["Gb_type"]): (name, str(entry["Explanation"]), tuple(map(str, entry["Hints"])))
            for name, entries in rows.items()
            for entry in reversed(entries)
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def completed(graph_break: Break) -> Break:
    """Return the break with what its log leaves out and PyTorch's registry has: id, explanation, hints."""
    number, explanation, hints = _registry().get(graph_break.type, (_IDS.get(graph_break.type, ""), "", ()))
    return replace(
        graph_break,
        id=graph_break.id or number,
        explanation=graph_break.explanation or explanation,
        hints=graph_break.hints or hints,
    )


def fix_of(graph_break: Break) -> Fix:
    """Return our fix for a break: what to change, in words and in code."""
    gb_id = completed(graph_break).id
    link = _GB_PAGE.format(gb_id.lower()) if gb_id else _BREAKS_PAGE
    # old versions have one sentence and no more, which says what the type does not
    rest = graph_break.context if graph_break.context or graph_break.hints else graph_break.explanation
    about = f"{graph_break.type}\n{rest}"
    for pattern, words, code in _FIXES:
        if re.search(pattern, about, re.MULTILINE):  # kept compiled by re, once a break is there
            return Fix(words, code, link)
    return Fix(_GENERIC, "model = torch.compile(model, fullgraph=True)  # raises at the first", link)


@dataclass(frozen=True)
class RecompileFix:
    """What would end the recompilations: ``yes``, ``no``, or ``once`` (one compilation less)."""

    text: str
    code: str = ""
    mark_dynamic: str = "no"
    bucketing: str = "no"
    dynamic: str = "no"

    @property
    def fix(self) -> Fix:
        """Return the remedy as a fix."""
        return Fix(self.text, self.code, _RECOMPILES_PAGE)


def fix_inside(cause: Cause, source: str, function: str, broken: Break | None, *, is_known: bool) -> Fix:
    """Return the remedy of what is looked at in the rest of a function, and is no argument of it.

    ``broken`` : the break before, where the log has it. ``is_known`` : whether the log shows what the arguments are.
    """
    at = f" at line {broken.frame.line}" if broken is not None and broken.frame else ""
    fix = fix_of(broken) if broken is not None else Fix("", "", _BREAKS_PAGE)
    if source.startswith("___stack"):
        text = (
            f"The {cause} is what the graph break{at} returns to Python: fix the break, so that it stays in the graph."
        )
        return replace(fix, text=text)
    root = re.split(r"\W", source, maxsplit=1)[0]
    text = f"{root} {'is' if is_known else 'may be'} a value inside {function}, not an argument: "
    is_size = cause in ("size", "shape guard")
    text += "mark the dimension of the argument it comes from" if is_size else f"keep its {cause} from changing"
    return replace(fix, text=f"{text}, or fix the graph break{at}, so that it stays inside one graph.")


def recompile_fix(cause: Cause, source: str, dim: int, count: int, *, automatic: bool, guard: str) -> RecompileFix:
    """Return what would remedy recompilations for one kind of guard.

    ``count`` : how often it failed. ``automatic`` : whether dynamo may make a size dynamic by itself once it has
    changed.
    """
    name = _LOOKED_UP.sub(r"\1", source) or "x"
    if cause == "size" and _ZERO_ONE.search(guard):
        return _zero_one(name, dim)
    if cause == "size":
        mark = f"torch._dynamo.mark_dynamic({name}, {max(dim, 0)})   # before the first call"
        if count <= 1:
            text = (
                f"Size {dim} of {name} changed once; from then on it is dynamic. Marking it before the first call saves"
                " the first compilation."
            )
            return RecompileFix(text, mark, mark_dynamic="once", dynamic="once")
        why = (
            "something keeps it static (dynamic=False, mark_static, a parameter)"
            if automatic
            else "dynamic=False or the configuration keeps it static"
        )
        text = (
            f"Size {dim} of {name} changes, and each new value is compiled; {why}. Compile with dynamic=True or"
            " mark the dimension; where the graph needs static shapes (CUDA graphs), pad to a few sizes with"
            " tt.BucketedModule."
        )
        return RecompileFix(text, mark, "yes", "yes", "yes")
    if cause == "shape guard":
        if re.search(r"^2 <= [^<]*$|!= 1$|== 1$|> 1$", guard):
            sized = _SIZE.search(guard)
            return _zero_one(sized[1] if sized else "x", int(sized[2]) if sized else 0)
        text = (
            "The graph is dynamic, but valid only for a range of sizes that the code or a kernel requires: pad to a"
            " few sizes with tt.BucketedModule, or move the comparison out of the function."
        )
        return RecompileFix(text, bucketing="yes")
    fixed = _CURES.get(cause)
    if fixed is None:
        return RecompileFix("The guard's text says what changed; keep it from changing.")
    text, code = fixed
    if cause == "number" and source.startswith("self."):
        text = "{name} is a number stored in a module, and part of the graph: keep it as a tensor."
    elif cause == "number" and source.startswith("G["):
        text = "{name} is a global number, and part of the graph: keep it as a tensor."
    elif cause == "aliasing":
        name = next(iter(_QUOTED.findall(guard)[1:]), name)
    elif cause == "type" and "Parameter" in guard:
        text += " For a parameter: {name}.detach()."
    # a global stays a constant whatever the setting
    is_symbol = cause == "number" and count == 1 and not source.startswith(("___", "G["))
    return RecompileFix(text.format(name=name), code.format(name=name), dynamic="once" if is_symbol else "no")


WRAPPER_FIX = RecompileFix(
    "fn is the argument of torch.compile: torch runs library functions, partials and modules through one shared"
    " wrapper, whose graphs and recompile limit they share. One graph for each of them is normal; if"
    " it is the same one again, call torch.compile once, outside the loop."
)
"""Of torch's own wrapper, which gets another function at each call."""
_LOOKED_UP = re.compile(r"^G\['(\w+)'\]|\.__code__$")
_ZERO_ONE = re.compile(r"\bexpected [01],|\bactual [01]\b")
_SIZE = re.compile(r"(?<![\w.\[\]'])([\w.\[\]']+?)\.size\(\)\[(\d{1,3})\]")
_QUOTED = re.compile(r'"([^"]+)"')


def _zero_one(name: str, dim: int) -> RecompileFix:
    """Return the fix for a dimension of size 0 or 1, which is never dynamic."""
    return RecompileFix(
        f"Size {max(dim, 0)} of {name} is 0 or 1 in some calls, and these always get a graph of their own: one more"
        " compilation is normal. Pad to 2, or mark the dimension as unbacked.",
        f"torch._dynamo.decorators.mark_unbacked({name}, {max(dim, 0)})   # before the first call",
        bucketing="yes",
    )


_CURES: dict[Cause, tuple[str, str]] = {
    "stride": ("Strides of {name} differ: give it one memory layout.", "{name} = {name}.contiguous()"),
    "dtype": ("{name} comes in several dtypes: cast it before the call.", "{name} = {name}.to(torch.float32)"),
    "rank": (
        "{name} comes with several numbers of dimensions: reshape it before the call.",
        "{name} = {name}.flatten()   # or any shape with one number of dimensions",
    ),
    "requires grad": (
        "{name} comes with and without gradients: one graph for each is normal; detach where none is wanted.",
        "{name} = {name}.detach()",
    ),
    "dispatch keys": (
        "{name} is of another kind of tensor, or grad or inference mode changes between calls: call it in one mode.",
        "",
    ),
    "device": ("{name} comes from several devices: move it before the call.", ""),
    "length": (
        "The length of {name} changes: pad a list to one length, give a dictionary the same"
        " keys, or pass one tensor whose size is marked dynamic.",
        "",
    ),
    "number": (
        "{name} is a Python number and part of the graph: pass a tensor, or let it become a symbol.",
        "{name} = torch.tensor({name})   # float({name}), if both ints and floats occur",
    ),
    "flag": ("{name} is a Python flag and part of the graph: one graph for each value is normal.", ""),
    "text": ("{name} is a text and part of the graph: one graph for each value; choose the function outside.", ""),
    "none": ("{name} is sometimes None: one graph for each is normal; pass a tensor to have one.", ""),
    "training mode": ("The module switches between training and evaluation: two graphs are normal.", ""),
    "object": (
        "{name} is another object at each call (a lambda, a partial, a new module): make it once, outside of the loop.",
        "",
    ),
    "type": ("{name} comes in several types: pass one.", ""),
    "keys": ("The keys of a dictionary change: give it the same keys, or pass the values themselves.", ""),
    "global state": (
        "Global state differs between calls ({name}): grad mode, autocast, default"
        " device or the number of threads; keep it the same around the call.",
        "",
    ),
    "aliasing": ("Two arguments are sometimes the same tensor: pass a copy.", "{name} = {name}.clone()"),
    "backend": ("The backend is another object at each torch.compile: make it once.", ""),
    "mode stack": ("Torch function modes differ between calls: enter them outside.", ""),
    "attribute": ("An attribute comes and goes on {name}: set it once, before the first call.", ""),
}
