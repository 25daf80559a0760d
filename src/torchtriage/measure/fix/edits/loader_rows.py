"""Batches of data in memory taken with one index each, in place of row by row: a loader over a BatchSampler."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from torchtriage.diagnose.lint.edits import SourceEdit, replace_node
from torchtriage.diagnose.lint.facts import Module, SourceCall
from torchtriage.diagnose.lint.syntax import hides, literal, path_of
from torchtriage.measure.fix.edits._loaders import hands_out_rows, loaders_at
from torchtriage.measure.fix.proposal import Proposal, Site
from torchtriage.measure.fix.statements import call_text, complete, imported, insert_before, source

CODES = frozenset({"DAT018", "DAT019", "DAT112", "LCH105", "HST020", "HST114"})
POSITIONS = ("dataset", "batch_size", "shuffle", "sampler", "batch_sampler", "num_workers", "collate_fn", "pin_memory")
OTHERS = frozenset({"collate_fn", "batch_sampler", "prefetch_factor", "timeout"})


def propose(site: Site) -> Iterator[Proposal]:
    """Yield the loader at the line with a sampler of batches."""
    for call in loaders_at(site)[:2]:
        given = _arguments(call.node)
        if given is not None and hands_out_rows(site.module, call):
            yield Proposal(_edits(site.module, call, given), "take the rows of a batch with one indexing operation")


def _arguments(node: ast.Call) -> dict[str, ast.expr] | None:
    """Return the arguments of a loader by name; None where they are not all known, or the loader has its own way."""
    if hides(node) or len(node.args) > len(POSITIONS):
        return None
    given = dict(zip(POSITIONS, node.args, strict=False)) | {item.arg: item.value for item in node.keywords if item.arg}
    size = given.get("batch_size")
    if OTHERS & set(given) or "dataset" not in given or size is None or literal(size) in (None, 1):
        return None
    return given


def _edits(module: Module, call: SourceCall, given: dict[str, ast.expr]) -> tuple[SourceEdit, ...]:
    data, name = given["dataset"], source(module, given["dataset"])
    edits: list[SourceEdit | None] = []
    if not path_of(data):
        statement = module.around(call.node, ast.stmt)
        if not isinstance(statement, ast.Assign | ast.Return | ast.Expr) or name.count("\n"):
            return ()
        free = [item for item in ("dataset", "data", "rows_of") if not module.names(item, module.scope(call.node))]
        edits.append(insert_before(module, statement, f"{free[0]} = {name}"))
        name = free[0]
    names = {item: imported(module, f"torch.utils.data.{item}") for item in ("BatchSampler", *_samplers(given))}
    edits += [edit for _, new in names.values() for edit in new]
    random, plain = names.get("RandomSampler", ("",))[0], names.get("SequentialSampler", ("",))[0]
    generator = f", generator={source(module, given['generator'])}" if "generator" in given else ""
    if "sampler" in given:
        sampler = source(module, given["sampler"])
    else:
        sampler = f"{random}({name}{generator})" if random else f"{plain}({name})"
        if random and plain:
            sampler = f"{sampler} if {source(module, given['shuffle'])} else {plain}({name})"
    last = source(module, given["drop_last"]) if "drop_last" in given else "False"
    sampler = f"{names['BatchSampler'][0]}({sampler}, {source(module, given['batch_size'])}, drop_last={last})"
    others = [item for item in call.node.keywords if item.arg not in (*POSITIONS[:5], "drop_last")]
    arguments = [name, f"sampler={sampler}", "batch_size=None"]
    arguments += [f"{item.arg}={source(module, item.value)}" for item in others]
    edits.append(replace_node(call.node, call_text(module, call.node, arguments)))
    return complete(edits)


def _samplers(given: dict[str, ast.expr]) -> tuple[str, ...]:
    shuffle = given.get("shuffle")
    if "sampler" in given:
        return ()
    if shuffle is None or literal(shuffle) is False:
        return ("SequentialSampler",)
    return ("RandomSampler",) if literal(shuffle) is True else ("RandomSampler", "SequentialSampler")
