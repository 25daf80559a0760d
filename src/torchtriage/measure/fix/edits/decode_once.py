"""What a data set makes of a sample in each epoch anew, kept in a dictionary: all of it, or up to what is random."""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Iterator

from torchtriage.diagnose.lint.edits import SourceEdit
from torchtriage.diagnose.lint.facts import Class, Module, SourceFunction
from torchtriage.diagnose.lint.samples import samples_of
from torchtriage.diagnose.lint.syntax import keyword, names_in, path_called, path_of
from torchtriage.diagnose.lint.torch_names import LOADERS, words
from torchtriage.diagnose.lint.work_syntax import parameters
from torchtriage.diagnose.lint.work_words import PURE_BUILTINS, PURE_METHODS
from torchtriage.measure.fix.edits._flow import Flow, flow_of, loads, meets
from torchtriage.measure.fix.edits._loaders import data_of, loaders_at, sample_function
from torchtriage.measure.fix.proposal import Proposal, Site, first_only
from torchtriage.measure.fix.statements import bound, complete, insert_after, source, statement_edit, wrap

STEADY = words("PIL numpy json torch math io os pathlib pickle csv gzip zlib cv2 pandas struct wave soundfile re")
LOADING = ("DAT018", "DAT019")
CODES = frozenset(
    {*LOADING, "DAT105", "DAT108", "DAT110", "HST020", "HST101", "HST103", "HST110", "HST111", "HST114"} | {"LCH105"}
)
DRAWS = re.compile(r"rand|choice\(|shuffle|sample\(|uniform|normal\(|\brng\b|noise|Jitter|Compose|[aA]ugment|time\(")
TRANSFORM = re.compile(r"transform|aug|tfm|preproc")
CHANGES = re.compile(r"^(\w+_|append|extend|sort|update|pop|fill|thumbnail|draft|paste|putpixel|resize_)$")


@first_only
def propose(site: Site) -> Iterator[Proposal]:
    """Yield the data set with a dictionary of what its samples are made of."""
    for getter in _getters(site):
        edits = _edits(site, getter)
        if edits:
            owner = getter.owner
            changes = "" if _is_sure(site.module, getter) else "samples are the same in each epoch"
            what = f"make each sample of {owner.name if owner else ''} once, and keep it"
            yield Proposal(edits, what, changes=changes)


def _getters(site: Site) -> list[SourceFunction]:
    """Return what makes samples at the line, or for the loader at the line."""
    samples = samples_of(site.module)
    getters = [item for item in samples.roots if item.name == "__getitem__" and item.owner is not None]
    here = sample_function(site)
    if here is not None:
        return [item for item in getters if item is here or here in site.module.reached(item.node)]
    if site.finding.code not in LOADING:
        return []
    names = [path_of(made.func) for call in loaders_at(site)[:2] if (made := data_of(site.module, call)) is not None]
    return [item for item in getters if item.owner is not None and item.owner.name in names]


def _edits(site: Site, getter: SourceFunction) -> tuple[SourceEdit, ...]:
    module, owner = site.module, getter.owner
    init = owner.methods.get("__init__") if owner is not None else None
    body = [
        item for item in getter.node.body if not (isinstance(item, ast.Expr) and isinstance(item.value, ast.Constant))
    ]
    args = [arg.arg for arg in getter.node.args.args]
    if owner is None or init is None or init.owner is not owner or len(args) != 2 or not body:
        return ()
    if " in self." in source(module, getter.node) or "worker_info" in source(module, getter.node):
        return ()
    same = []
    for item in body:
        if not _is_same(module, owner, item, args[0]):
            break
        same.append(item)
    rest = body[len(same) :]
    here = [item for item in same if _does_work(item) and (site.finding.code in LOADING or _holds(site, item, getter))]
    attribute = next((item for item in ("cache", "made", "prepared") if f"self.{item}" not in module.text), "")
    if not here or not attribute or args[1] in bound(same):
        return ()
    put = insert_after(module, init.node.body[-1], f"self.{attribute} = {{}}")
    entry = f"self.{attribute}[{args[1]}]"
    guard = f"if {args[1]} not in self.{attribute}:"
    if not rest:
        last = same[-1]
        if not isinstance(last, ast.Return) or last.value is None:
            return ()
        made = f"{entry} = {source(module, last.value)}"
        inner = wrap(module, same[:-1], guard) if same[:-1] else ()
        made = f"    {made}" if inner else f"{guard}\n    {made}"
        kept = statement_edit(module, last, f"{made}\nreturn {entry}")
    else:
        read = set().union(*(names_in(item) for item in rest)) & bound(same)
        if not read or _changed_in_place(rest, read):
            return ()
        order = [name for item in same for name in _bound_in_order(item) if name in read]
        names = ", ".join(dict.fromkeys(order))
        kept = insert_after(module, same[-1], f"    {entry} = {names}\n{names} = {entry}")
        inner = wrap(module, same, guard)
    return complete([put, *inner, kept])


def _is_same(module: Module, owner: Class, statement: ast.stmt, own: str) -> bool:
    """Return whether a statement makes the same of the same sample each time, and changes nothing else."""
    texts = [source(module, statement), *(source(module, item.node) for item in module.reached(statement))]
    if any(DRAWS.search(text) for text in texts):
        return False
    for node in ast.walk(statement):
        if isinstance(node, ast.Return | ast.Yield | ast.Raise | ast.Continue) and node is not statement:
            return False
        stored = isinstance(node, ast.Attribute | ast.Subscript) and not isinstance(node.ctx, ast.Load)
        if stored and (own in names_in(node) or isinstance(node, ast.Attribute)):
            return False
        called = path_called(node)
        given = called.startswith(f"{own}.") and called.rpartition(".")[2] not in owner.methods
        if given and TRANSFORM.search(called) and DRAWS.search(module.text.replace(source(module, owner.node), "")):
            return False  # what the data set is given may be random
    return True


def _is_sure(module: Module, getter: SourceFunction) -> bool:
    """Return whether all that makes a sample is known to give the same in each epoch, and no one else holds it."""
    loaders = module.called(*LOADERS)
    own_batches = any(keyword(call.node, "collate_fn") is not None for call in loaders)
    sizes = [keyword(call.node, "batch_size") for call in loaders]
    if own_batches or any(isinstance(size, ast.Constant) and size.value is None for size in sizes):
        return False
    if any(path_of(call.node.func) == "setattr" for call in module.calls) or getter.owner is None:
        return False
    flow = flow_of(module)
    lasting = flow.lasting(getter.owner)
    shared = flow.constants | set(module.aliases) | set(dir(builtins))
    for function in (getter, *module.reached(getter.node)):
        local = bound(function.node.body) | parameters(function.node)
        for path in set().union(*(loads(item) for item in function.node.body)):
            root, _, name = path.partition(".")
            kept = meets(path, lasting) or name in getter.owner.methods
            if (root == "self" and not kept) or (root not in local and root not in shared):
                return False
        for node in ast.walk(function.node):
            if isinstance(node, ast.Call) and not _is_known(module, flow, node, local):
                return False
    return True


def _is_known(module: Module, flow: Flow, node: ast.Call, local: set[str]) -> bool:
    call, name = flow.call(node), module.name_of(node.func)
    if (call is not None and call.callees) or name in PURE_BUILTINS or name == "open":
        return True
    if name.partition(".")[0] in STEADY:
        return True
    if not isinstance(node.func, ast.Attribute):
        return False
    root = path_of(node.func.value).partition(".")[0]
    return node.func.attr in PURE_METHODS or root == "" or (root in local and root != "self")


def _does_work(statement: ast.stmt) -> bool:
    return any(isinstance(node, ast.Call | ast.BinOp) for node in ast.walk(statement))


def _holds(site: Site, statement: ast.stmt, getter: SourceFunction) -> bool:
    """Return whether a statement of a getter runs the line of the finding."""
    if site.function is getter.node:
        return site.holds(statement)
    return any(item.node is site.function for item in site.module.reached(statement))


def _bound_in_order(statement: ast.stmt) -> list[str]:
    stores = [node for node in ast.walk(statement) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)]
    return [node.id for node in sorted(stores, key=lambda node: (node.lineno, node.col_offset))]


def _changed_in_place(rest: list[ast.stmt], names: set[str]) -> bool:
    """Return whether what is kept would be changed by what comes after."""
    for node in (part for item in rest for part in ast.walk(item)):
        if isinstance(node, ast.AugAssign) and names_in(node.target) & names:
            return True
        if isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load) and names_in(node.value) & names:
            return True
        called = node.func if isinstance(node, ast.Call) else None
        if isinstance(called, ast.Attribute) and path_of(called.value) in names and CHANGES.match(called.attr):
            return True
    return False
