"""Batches padded to their own longest row, by the tokenizer, by a collator, or by hand."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from torchtriage.diagnose.lint.edits import SourceEdit, replace_node
from torchtriage.diagnose.lint.facts import Module
from torchtriage.diagnose.lint.syntax import indices, keyword, literal, names_in, path_of
from torchtriage.measure.fix.proposal import Proposal, Site, first_only
from torchtriage.measure.fix.statements import free_name, imported, insert_before, set_keywords, source, without_keyword

CODES = frozenset({"DAT102"})
WHAT = "pad each batch to its own longest row"
BUFFERS = frozenset({"zeros", "ones", "full", "empty", "new_zeros", "new_ones", "new_full"})
GATHERS = re.compile(r"collat|batch|step|forward|predict|embed|classify|encode", re.IGNORECASE)


@first_only
def propose(site: Site) -> Iterator[Proposal]:
    """Yield shorter padding for what is padded at the line."""
    for node in (call.node for call in site.calls):
        padding = keyword(node, "padding")
        if padding is not None and literal(padding) == "max_length":
            yield from _by_tokenizer(site, node, padding)
            return
        if path_of(node.func).rpartition(".")[2] in BUFFERS:
            yield Proposal(_of_buffer(site, node), WHAT)
    yield Proposal(_of_lists(site), WHAT)


def _by_tokenizer(site: Site, node: ast.Call, padding: ast.expr) -> Iterator[Proposal]:
    """Yield padding of this call's texts where it makes a batch, else no padding before batches are made."""
    module, name = site.module, site.function.name if site.function is not None else ""
    if GATHERS.search(name) or (
        site.step_loop is not None and site.step_loop in [item.node for item in module.loops if item.steps]
    ):
        yield Proposal((replace_node(padding, '"longest"'),), WHAT)
        return
    tokenizer = next(
        (call.target for call in module.calls if call.target and re.search("okenizer", call.name + call.attr)), ""
    )
    alone = without_keyword(node, "padding")
    for call in module.calls:
        trainer = re.search(r"Trainer$", call.attr) is not None and isinstance(call.node.func, ast.Name)
        loader = call.name.startswith("torch.utils.data.") and call.attr == "DataLoader"
        taken = keyword(call.node, "data_collator" if trainer else "collate_fn")
        if not (trainer or loader) or taken is not None or not alone:
            continue
        if trainer and (keyword(call.node, "tokenizer") or keyword(call.node, "processing_class")):
            yield Proposal((alone,), WHAT)  # its collator pads
            return
        known = module.names(tokenizer, module.scope(call.node)) or module.names(tokenizer, module.tree)
        if tokenizer and known:
            collator, imports = imported(module, "transformers.DataCollatorWithPadding")
            settings = {"data_collator" if trainer else "collate_fn": f"{collator}({tokenizer})"}
            edits = set_keywords(module, call.node, settings)
            if edits:
                yield Proposal((alone, *imports, *edits), WHAT)
                return


def _of_buffer(site: Site, node: ast.Call) -> tuple[SourceEdit, ...]:
    """Return the edits for ``out = torch.zeros(len(rows), N)`` whose rows are filled by ``out[i, :len(row)] = row``."""
    module, function = site.module, site.function
    made = module.parents.get(node)
    shape = node.args[0].elts if node.args and isinstance(node.args[0], ast.Tuple | ast.List) else node.args
    if function is None or not isinstance(made, ast.Assign) or len(shape) < 2:
        return ()
    longest = _longest(module, function, source(module, made.targets[0]))
    width = shape[1]
    if not longest or "max(" in source(module, width):
        return ()
    if isinstance(width, ast.Name):
        stores = module.stores(width.id, function)
        set_at = module.parents.get(stores[0]) if len(stores) == 1 else None
        if isinstance(set_at, ast.Assign) and "min(" not in source(module, set_at.value):
            rows = longest.rpartition(" in ")[2].rstrip(")")
            bound = [item.lineno for item in module.stores(rows, function)]
            if all(line < set_at.lineno for line in bound):
                return (replace_node(set_at.value, f"min({source(module, set_at.value)}, {longest})"),)
        if stores:
            return ()
    name = free_name(module, "longest", "width", "n_most")
    put = insert_before(module, made, f"{name} = min({source(module, width)}, {longest})")
    same = [item for item in ast.walk(function) if isinstance(item, ast.expr) and ast.dump(item) == ast.dump(width)]
    within = [item for item in same if (item.lineno, item.col_offset) >= (made.lineno, made.col_offset)]
    return (put, *(replace_node(item, name) for item in within)) if put is not None and name else ()


def _longest(module: Module, function: ast.AST, buffer: str) -> str:
    """Return the length of the longest row of those that a loop puts into a buffer."""
    for loop in (item for item in ast.walk(function) if isinstance(item, ast.For)):
        for part in ast.walk(loop):
            target = part.targets[0] if isinstance(part, ast.Assign) else None
            if not isinstance(target, ast.Subscript) or source(module, target.value) != buffer:
                continue
            parts = indices(target)
            if not isinstance(parts[-1], ast.Slice) or parts[-1].upper is None or parts[-1].lower is not None:
                continue
            length, over, each = parts[-1].upper, loop.iter, loop.target
            if isinstance(over, ast.Call) and path_of(over.func) == "enumerate" and isinstance(each, ast.Tuple):
                over, each = over.args[0], each.elts[1]
            if isinstance(length, ast.Name):
                length = module.made_of(length)
            if names_in(length) & names_in(each) and "len(" in source(module, length) and path_of(over):
                said = source(module, each).strip("()")
                return f"max({source(module, length)} for {said} in {source(module, over)})"
    return ""


def _of_lists(site: Site) -> tuple[SourceEdit, ...]:
    """Return the edits for ``[row + [0] * (N - len(row)) for row in rows]``."""
    module, statement = site.module, site.statement
    if statement is None or not isinstance(statement, ast.Assign | ast.Return | ast.Expr):
        return ()
    for made in (item for item in ast.walk(statement) if isinstance(item, ast.ListComp | ast.GeneratorExp)):
        for node in ast.walk(made.elt):
            if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Sub):
                continue
            length = source(module, node.right)
            over = made.generators[0]
            if (
                not length.startswith("len(")
                or not path_of(over.iter)
                or not names_in(node.right) & names_in(over.target)
            ):
                continue
            if names_in(node.left) & names_in(over.target) or module.settings.value(node.left, site.function) is ...:
                continue
            name = free_name(module, "longest", "width", "n_most")
            row = source(module, over.target).strip("()")
            rows = f"max({length} for {row} in {source(module, over.iter)})"
            put = insert_before(module, statement, f"{name} = min({source(module, node.left)}, {rows})")
            return (put, replace_node(node.left, name)) if put is not None and name else ()
    return ()
