"""A file that all samples share opened, or read, with the first of them, and left open."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from torchtriage.diagnose.lint.edits import SourceEdit, replace_node
from torchtriage.diagnose.lint.facts import Class, Module, SourceFunction
from torchtriage.diagnose.lint.samples import Samples, samples_of
from torchtriage.diagnose.lint.syntax import path_of
from torchtriage.measure.fix.edits._loaders import sample_function
from torchtriage.measure.fix.proposal import Proposal, Site
from torchtriage.measure.fix.statements import complete, insert_after, insert_before, source, statement_edit, unwrap

CODES = frozenset({"DAT103", "DAT105", "HST101", "HST103", "HST110", "HST111", "HST114", "HST020", "DAT018"})
CONTAINERS = re.compile(
    r"^(h5py\.File|zipfile\.ZipFile|sqlite3\.connect|tarfile\.open|rasterio\.open|netCDF4\.Dataset|tables\.open_file"
    r"|lmdb\.open|openslide\.OpenSlide|pyarrow\.parquet\.ParquetFile|numpy\.load|open|io\.open)$"
)
TEXT = re.compile(r"^(json|yaml|pickle|csv|pandas|numpy|toml)\b|^list$")


def propose(site: Site) -> Iterator[Proposal]:
    """Yield the method of a data set at the line with what it opens kept in an attribute."""
    module, samples, function = site.module, samples_of(site.module), sample_function(site)
    if function is None or function.owner is None or "__init__" not in function.owner.methods:
        return
    statement = site.statement
    while statement is not None and not isinstance(statement, ast.With | ast.FunctionDef):
        if isinstance(statement, ast.Assign) and statement in function.node.body:
            break
        outer = module.parents.get(statement)
        statement = outer if isinstance(outer, ast.stmt) else None
    if isinstance(statement, ast.With):
        edits = _of_block(samples, function, function.owner, statement)
    elif isinstance(statement, ast.Assign):
        edits = _of_name(samples, function, function.owner, statement)
    else:
        return
    yield Proposal(edits, "open the file once, and keep it open")


def _of_block(samples: Samples, function: SourceFunction, owner: Class, block: ast.With) -> tuple[SourceEdit, ...]:
    """Return the edits for ``with open(self.path) as file: ...``."""
    module, item = samples.module, block.items[0]
    opened, name = item.context_expr, item.optional_vars
    if len(block.items) != 1 or not isinstance(name, ast.Name) or not _is_shared(samples, opened, function):
        return ()
    inner = block.body[0]
    if len(block.body) == 1 and isinstance(inner, ast.Assign) and _reads_all(samples, function, inner, name.id):
        return _read_once(module, owner, block, inner)
    attribute = _free(module, name.id if len(name.id) > 2 else "file")
    named = [part for part in ast.walk(function.node) if isinstance(part, ast.Name) and part.id == name.id]
    reads = [part for part in named if part is not name]
    if any(isinstance(part.ctx, ast.Store) for part in reads) or _is_plain_open(module, opened):
        return ()
    guard = f"if {attribute} is None:\n    {attribute} = {source(module, opened)}"
    before, uses = insert_before(module, block, guard), [replace_node(part, attribute) for part in reads]
    return complete([_kept(module, owner, attribute), before, *unwrap(module, block), *uses])


def _of_name(samples: Samples, function: SourceFunction, owner: Class, made: ast.Assign) -> tuple[SourceEdit, ...]:
    """Return the edits for ``file = h5py.File(self.path)``."""
    module, name = samples.module, path_of(made.targets[0])
    if not name.isidentifier() or not _is_shared(samples, made.value, function) or _is_plain_open(module, made.value):
        return ()
    reads = [part for part in ast.walk(function.node) if isinstance(part, ast.Name) and part.id == name]
    if sum(isinstance(part.ctx, ast.Store) for part in reads) != 1:
        return ()
    closed = [part for part in ast.walk(function.node) if isinstance(part, ast.Attribute) and part.attr == "close"]
    if any(path_of(part.value) == name for part in closed):
        return ()
    attribute = _free(module, name if len(name) > 2 else "file")
    rows = f"if {attribute} is None:\n    {attribute} = {source(module, made.value)}\n{name} = {attribute}"
    return complete([_kept(module, owner, attribute), statement_edit(module, made, rows)])


def _read_once(module: Module, owner: Class, block: ast.With, inner: ast.Assign) -> tuple[SourceEdit, ...]:
    """Return the edits for ``with open(self.path) as file: table = json.load(file)``."""
    name = path_of(inner.targets[0])
    if not name.isidentifier():
        return ()
    attribute = _free(module, name)
    text = source(module, block)
    indent = " " * block.col_offset
    inside = "\n".join(row.removeprefix(indent) for row in text.split("\n"))
    inside = re.sub(rf"(?m)^(\s+){re.escape(name)} = ", rf"\1{attribute} = ", inside)
    rows = f"if {attribute} is None:\n" + "\n".join(f"    {row}" for row in inside.split("\n"))
    return complete([_kept(module, owner, attribute), statement_edit(module, block, f"{rows}\n{name} = {attribute}")])


def _reads_all(samples: Samples, function: SourceFunction, inner: ast.Assign, file: str) -> bool:
    """Return whether a statement makes the same of the file for all samples."""
    calls = [part for part in ast.walk(inner.value) if isinstance(part, ast.Call)]
    named = [samples.module.name_of(part.func) for part in calls]
    others = [part for part in ast.walk(inner.value) if isinstance(part, ast.Name) and part.id != file]
    fixed = all(samples.is_fixed(part, function) for part in others)
    return fixed and any(TEXT.search(name) for name in named) and len(inner.targets) == 1


def _is_shared(samples: Samples, node: ast.expr, function: SourceFunction) -> bool:
    """Return whether an expression opens the same file for all samples."""
    opens = isinstance(node, ast.Call) and CONTAINERS.match(samples.module.name_of(node.func)) is not None
    return opens and samples.is_fixed(node, function)


def _is_plain_open(module: Module, node: ast.expr) -> bool:
    """Return whether a file has a position, which the next sample would begin at."""
    return module.name_called(node) in ("open", "io.open")


def _free(module: Module, name: str) -> str:
    return f"self.{name}" if not re.search(rf"self\.{name}\b", module.text) else f"self.{name}_kept"


def _kept(module: Module, owner: Class, attribute: str) -> SourceEdit | None:
    return insert_after(module, owner.methods["__init__"].node.body[-1], f"{attribute} = None")
