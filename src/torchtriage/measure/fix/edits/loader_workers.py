"""Worker processes for a DataLoader: started, left running from epoch to epoch, or left out where they cost more."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from torchtriage.core.workers import n_cores
from torchtriage.diagnose.lint.edits import replace_node
from torchtriage.diagnose.lint.facts import Module, SourceCall
from torchtriage.diagnose.lint.rules._loaders import dataset, in_memory, reads_or_transforms, workers
from torchtriage.diagnose.lint.syntax import keyword, literal, path_of
from torchtriage.measure.fix.edits._loaders import (
    REORDERED,
    data_of,
    draws,
    hands_out_rows,
    loaders_at,
    sample_class,
    shuffles,
)
from torchtriage.measure.fix.edits._settings import constant_of
from torchtriage.measure.fix.proposal import Proposal, Site
from torchtriage.measure.fix.statements import set_keywords, source

LOADING, STARVED = "DAT018", "DAT019"
CODES = frozenset({LOADING, STARVED, "DAT103", "DAT105", "HST020", "HST101", "HST103", "HST110", "HST111", "HST114"})
MOST = 4
"""Workers that one loader is given."""
SEEDS = "random numbers of the samples come from the workers' own seeds"


def propose(site: Site) -> Iterator[Proposal]:
    """Yield other numbers of workers for the loader at the line."""
    if site.finding.code not in (LOADING, STARVED) and sample_class(site) is None:
        return
    calls = loaders_at(site)
    for call in calls[:2]:
        if _is_steered(site.module, call):
            continue
        number = _number(site.module, call)
        if number == 0 and not _parts_missing(site.module, call):
            yield from _started(site.module, call)
        elif number and site.finding.code == STARVED:
            yield from _running(site.module, call, number)
    if not calls and site.finding.code == LOADING:
        yield from _of_trainer(site)


def _is_steered(module: Module, call: SourceCall) -> bool:
    """Return whether a loop sets something of the data set: workers that keep running have a copy of their own."""
    given = call.node.args[0] if call.node.args else keyword(call.node, "dataset")
    names = {path_of(given) if given is not None else "", f"{call.target}.dataset" if call.target else ""} - {""}
    made = data_of(module, call)
    known = module.classes.get(path_of(made.func)) if made is not None else None
    own = {name for name in (*known.methods, *known.attributes) if name[:2] != "__"} if known is not None else set()
    return any(
        isinstance(node, ast.Attribute)
        and (isinstance(node.ctx, ast.Store) or getattr(file.parents.get(node), "func", None) is node)
        and (path_of(node.value) in names or (file is not module and _is_of_data(node, own)))
        for file in (module, *module.others)
        for loop in ast.walk(file.tree)
        if isinstance(loop, ast.For | ast.While)
        for node in ast.walk(loop)
    )


def _is_of_data(node: ast.Attribute, own: set[str]) -> bool:
    """Return whether another file's attribute is one of the data set, by its name or as ``loader.dataset.epoch``."""
    owner = path_of(node.value)
    return (node.attr in own and owner != "self") or owner.endswith(".dataset")


def _started(module: Module, call: SourceCall) -> Iterator[Proposal]:
    """Yield workers for a loader that has none."""
    if in_memory(module, call) or hands_out_rows(module, call):
        return
    number = str(min(n_cores(), MOST))
    given = keyword(call.node, "num_workers")
    constant = constant_of(module, given)
    lasts = "True" if given is None or constant is given else f"{source(module, given)} > 0"
    settings = {} if given is not None and constant is not given else {"num_workers": number}
    edits = set_keywords(module, call.node, settings | {"persistent_workers": lasts})
    if edits and constant is not None and constant is not given:
        edits = (replace_node(constant, number), *edits)
    if edits and (given is None or constant is not None):
        changes = SEEDS if draws(module, call) else REORDERED if shuffles(call) else ""
        yield Proposal(edits, f"prepare batches in {number} worker processes", changes)


def _running(module: Module, call: SourceCall, number: int) -> Iterator[Proposal]:
    """Yield changes for a loader with workers: leave them running, start more, start none."""
    node = call.node
    given = keyword(node, "num_workers")
    constant = constant_of(module, given)
    if given is None:
        return
    known = dataset(module, call)
    cheap = in_memory(module, call) or (known is not None and not reads_or_transforms(module, known))
    if keyword(node, "persistent_workers") is None:
        lasts = "True" if constant is given else f"{source(module, given)} > 0"
        changes = REORDERED if shuffles(call) or draws(module, call) else ""
        yield Proposal(set_keywords(module, node, {"persistent_workers": lasts}), "keep the workers running", changes)
    if constant is None:
        return
    more = min(n_cores(), MOST)
    if number < more and not cheap:
        yield Proposal((replace_node(constant, str(more)),), f"prepare batches in {more} worker processes", SEEDS)
    needs_workers = [item for item in ("prefetch_factor", "timeout", "multiprocessing_context") if keyword(node, item)]
    if not needs_workers:
        off = [replace_node(constant, "0")]
        persistent = keyword(node, "persistent_workers")
        if literal(persistent) is True and persistent is not None:
            off.append(replace_node(persistent, "False"))
        yield Proposal(tuple(off), "prepare batches without worker processes")


def _number(module: Module, call: SourceCall) -> int | None:
    """Return how many workers a loader is given; None where the file does not say."""
    constant = constant_of(module, keyword(call.node, "num_workers"))
    known = constant.value if constant is not None else workers(module, call)
    return known if isinstance(known, int) else None


def _parts_missing(module: Module, call: SourceCall) -> bool:
    """Return whether each worker would give all of a stream's data."""
    known = dataset(module, call)
    is_stream = known is not None and any(base.endswith("IterableDataset") for base in known.bases)
    return is_stream and "worker_info" not in module.text


def _of_trainer(site: Site) -> Iterator[Proposal]:
    """Yield workers for the loaders that the Trainer of transformers makes."""
    for call in site.module.calls:
        if call.attr.endswith("TrainingArguments") and keyword(call.node, "dataloader_num_workers") is None:
            number = str(min(n_cores(), MOST))
            settings = {"dataloader_num_workers": number, "dataloader_persistent_workers": "True"}
            edits = set_keywords(site.module, call.node, settings)
            yield Proposal(edits, f"prepare batches in {number} worker processes")
