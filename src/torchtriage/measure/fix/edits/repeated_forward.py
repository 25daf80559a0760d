"""Keep the result of a forward pass: for the second call with the same inputs, or for the next epoch's same batches."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from torchtriage.diagnose.lint.edits import replace_node
from torchtriage.diagnose.lint.syntax import arguments, keyword, names_in, path_of, stored_names
from torchtriage.diagnose.lint.torch_names import LOADERS, words
from torchtriage.diagnose.lint.work_words import RANDOM
from torchtriage.measure.fix.edits._flow import Flow, flow_of, meets
from torchtriage.measure.fix.edits._lasting import kept_by_key, outdented, same
from torchtriage.measure.fix.edits.less_often import counter_of
from torchtriage.measure.fix.proposal import Loop, Proposal, Site, first_only
from torchtriage.measure.fix.statements import body_of, free_name, insert_before, source

CODES = words("LCH103 LCH105 LCH111 HST020 HST114 CFG043 CFG042 OPT101 LCH014")
BETWEEN = re.compile(r"\.(step|train|eval|load_state_dict|zero_|copy_|requires_grad_)\(")
COUNTS = re.compile(r"BatchNorm|batch_norm|torchvision|\btimm\b|track_running_stats|Dropout|dropout|spectral_norm")
COUNTED = "running statistics and random numbers advance once instead of twice"
CHANGES = words("train load_state_dict mul_ lerp_ copy_")
FROZEN = re.compile(
    r"teacher|frozen|ref(erence)?(_|$|\b)|backbone|encoder|pretrained|extractor|vgg|clip|lpips|target", re.I
)


@first_only
def propose(site: Site) -> Iterator[Proposal | None]:
    """Yield one call instead of two that are the same, then a table of what a frozen model gives for each batch."""
    flow, statement = flow_of(site.module), site.statement
    if statement is None:
        return
    calls = [part for part in ast.walk(statement) if isinstance(part, ast.Call) and _runs(flow, part)]
    yield from (_second(site, flow, call) for call in calls)
    yield from (_kept(site, flow, call, statement) for call in calls)


def _runs(flow: Flow, call: ast.Call) -> bool:
    known = flow.call(call)
    if known is None or not (call.args or call.keywords):
        return False
    inside = [part.func for item in call.args for part in ast.walk(item) if isinstance(part, ast.Call)]
    if any(RANDOM.search(path_of(func)) for func in inside):
        return False
    return known.receiver.kind == "module" or any(callee.runs_module for callee in known.callees)


def _statement(site: Site, node: ast.AST) -> ast.stmt:
    while not isinstance(node, ast.stmt):
        node = site.module.parents[node]
    return node


def _second(site: Site, flow: Flow, call: ast.Call) -> Proposal | None:
    """Use the result of the first of two calls that are written the same, where nothing changes between them."""
    module = site.module
    around = module.scope(call)
    pairs = [item for item in same(around, call) if isinstance(item, ast.Call)]
    pairs.sort(key=lambda item: (item.lineno, item.col_offset))
    if len(pairs) < 2:
        return None
    first, second = pairs[0], pairs[1]
    begin, end = _statement(site, first), _statement(site, second)
    body = body_of(module, begin) or []
    inside = next((item for item in body if end in ast.walk(item)), None)
    loops = [module.around(item, ast.For, ast.While) for item in (first, second)]
    if inside is None or begin is end or loops[0] is not loops[1]:
        return None
    between = body[body.index(begin) + 1 : body.index(inside)]
    text = "\n".join(source(module, item) for item in between)
    changed = flow.changes([begin, *between])
    if BETWEEN.search(text) or any(meets(path, changed) for path in flow.reads(call) if path != path_of(call.func)):
        return None
    changes = COUNTED if COUNTS.search(module.text) else ""
    if isinstance(begin, ast.Assign) and begin.value is first and isinstance(begin.targets[0], ast.Name):
        name = begin.targets[0].id
        if name in flow.changes(between):
            return None
        return Proposal((replace_node(second, name),), f"use the result of line {first.lineno} again", changes)
    name = free_name(module, "output", "forward_output", "first_output")
    before = insert_before(module, begin, f"{name} = {outdented(module, first, begin)}")
    if before is None or not name or isinstance(begin, ast.For | ast.While | ast.With | ast.If):
        return None
    edits = (before, replace_node(first, name), replace_node(second, name))
    return Proposal(edits, f"run {path_of(call.func)}() once and use its result twice", changes)


def _kept(site: Site, flow: Flow, call: ast.Call, statement: ast.stmt) -> Proposal | None:
    """Keep what a frozen model gives for each batch of data that comes in the same order in every epoch."""
    module, loops = site.module, site.for_loops
    if len(loops) < 2 or not isinstance(statement, ast.Assign) or not FROZEN.search(path_of(call.func)):
        return None
    inner, outer = loops[0], loops[1]
    if not _keeps_order(site, inner):
        return None
    target = names_in(inner.target)
    varying = flow.changes([outer]) - target
    if any(meets(path, varying) for path in flow.reads(statement.value)) or not names_in(call) & target:
        return None
    if target & set().union(*map(stored_names, inner.body)):
        return None
    counter, more = counter_of(site, inner)
    path = path_of(call.func)
    name = re.sub(r"\W+", "_", path.removeprefix("self.")) + "_outputs"
    if not counter or name in names_in(module.tree) or _is_trained(site, path) or _is_given(site, path):
        return None
    edits = kept_by_key(module, statement.value, statement, outer, name, counter)
    return Proposal((*edits, *more) if edits else (), f"run {path}() once for each batch, not in each epoch")


def _is_given(site: Site, path: str) -> bool:
    """Return whether a call is given a model, and may change it."""
    return any(path_of(item) == path for call in site.module.calls for item in arguments(call.node))


def _is_trained(site: Site, path: str) -> bool:
    """Return whether an optimizer is given a model's parameters, or the model is trained or averaged."""
    optimizers = [call for call in site.module.calls if call.name.startswith("torch.optim.")]
    changes = [*optimizers, *(call for call in site.module.calls if call.attr in CHANGES)]
    if any(f"{path}." in source(site.module, call.node) for call in changes if call.context.loop is not None):
        return True
    given = re.compile(rf"\b{re.escape(path)}\.parameters\(")
    return any(given.search(source(site.module, call.node)) for call in optimizers)


def _keeps_order(site: Site, loop: Loop) -> bool:
    """Return whether a loop goes over the same batches in the same order each time."""
    over: ast.AST = loop.iter if isinstance(loop, ast.For) else loop
    while isinstance(over, ast.Call) and path_of(over.func) in ("enumerate", "tqdm") and over.args:
        over = over.args[0]
    made = site.module.made_of(over) if isinstance(over, ast.expr) else over
    if isinstance(made, ast.Call) and site.module.name_of(made.func) in LOADERS:
        return keyword(made, "shuffle") is None and keyword(made, "sampler") is None
    if isinstance(made, ast.Call) and isinstance(made.func, ast.Attribute):
        return made.func.attr in ("split", "chunk") and "perm" not in source(site.module, made)
    return isinstance(made, ast.List | ast.ListComp | ast.Tuple)
