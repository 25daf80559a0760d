"""The same file is opened, flushed or read again in every step.

Looks like: ``open(path, "a")`` for one line, ``flush()`` or ``os.fsync()``, a fixed file that is
    read, written or parsed, in a loop of steps or in what it calls (a logger, a callback).
Slow because: opening and flushing are system calls, ``fsync`` waits for the disk: from tens of microseconds to tens of
    milliseconds in which nothing is computed.
Fix: open the file once and let its buffer fill; write every N steps; read settings before the loop.
Quiet when: each step has a file of its own (its input, its result), in a data set, behind
    ``if step % n``. A remark where a loop writes many lines while it is open.
Source: Python documentation of ``open`` and ``os.fsync``.
"""

import ast
from collections.abc import Iterator

from torchtriage.diagnose.lint.base import Fix, Hit, Module, Rule, SourceCall, literal, names_in, text_of
from torchtriage.diagnose.lint.syntax import argument

RULE = Rule(
    "HST101", "file-io-in-step", "host", "A file is opened or flushed in every step", "medium", over=("HST134",)
)

FIX = Fix(
    text="Open the file once, and write when its buffer is full or the run ends.",
    code="""with open(path, "a") as log:          # before the loop
    for step, batch in enumerate(loader):
        log.write(line)                # no flush(): the buffer is written when it is full""",
    link="https://docs.python.org/3/library/functions.html#open",
)

_READS = ("numpy.load", "torch.load", "numpy.loadtxt", "pandas.read_csv", "pandas.read_json", "yaml.safe_load")
_WRITES = ("numpy.save", "numpy.savez", "numpy.savetxt")
_PATHS = ("read_text", "read_bytes", "write_text", "write_bytes")


def find(module: Module) -> Iterator[Hit]:
    """Yield what is done to one file again and again."""
    for call in module.called("os.fsync"):
        if call.context.hot:
            yield Hit(call.node, "every step waits for the disk to write", "fsync")
    for call in module.sent("flush"):
        if call.context.hot and not call.node.args and call.receiver.kind in ("unknown", "object"):
            yield Hit(call.node, f"every step flushes a file: {text_of(call.node)}", "flush", severity="low")
    for call in [*module.sent("savefig"), *module.called("matplotlib.pyplot.savefig")]:
        if call.context.hot:
            yield Hit(call.node, f"every step draws and writes a figure: {text_of(call.node)}", "savefig")
    for call in module.sent("to_csv", "to_json", "to_excel", "to_parquet", "to_pickle"):
        if call.context.hot:
            yield Hit(call.node, f"every step writes the whole table: {text_of(call.node)}", call.attr)
    opened = [*module.called("open", "io.open", "gzip.open", *_READS, *_WRITES), *module.sent("open", *_PATHS)]
    for call in opened:
        if not call.context.hot:
            continue
        if _appends(call):
            message = f"every step opens this file again: {text_of(call.node)}"
            yield Hit(call.node, message, call.attr, severity="note" if _writes_many(module, call) else None)
        elif _is_fixed(call):
            yield Hit(call.node, f"every step opens the same file again: {text_of(call.node)}", call.attr)


def _mode(call: SourceCall) -> object:
    at = 0 if isinstance(call.node.func, ast.Attribute) and not call.name else 1
    return literal(argument(call.node, "mode", at))


def _appends(call: SourceCall) -> bool:
    mode = _mode(call)
    return call.attr == "open" and isinstance(mode, str) and mode.startswith("a")


def _writes_many(module: Module, call: SourceCall) -> bool:
    """Return whether a loop writes many lines while the file is open."""
    return any(
        any(isinstance(node, ast.For) for part in block.body for node in ast.walk(part))
        for _, opened, _, block in module.withs
        if opened is call
    )


def _is_fixed(call: SourceCall) -> bool:
    """Return whether the path is the same each time: a text, a constant, an attribute of ``self``."""
    if call.name or isinstance(call.node.func, ast.Name):
        path: ast.expr | None = call.node.args[0] if call.node.args else None
    else:
        path = call.owner
    if path is None or any(isinstance(node, ast.Call | ast.Subscript | ast.JoinedStr) for node in ast.walk(path)):
        return False
    if isinstance(path, ast.Name):
        return path.id.isupper()
    return all(name == "self" or name.isupper() for name in names_in(path))
