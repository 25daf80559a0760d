"""Report, save and evaluate every so many steps instead of in each of them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from torchtriage.diagnose.lint.edits import SourceEdit, lines_of, replace_node
from torchtriage.diagnose.lint.facts import Module
from torchtriage.diagnose.lint.syntax import literal, names_in, path_called, path_of
from torchtriage.diagnose.lint.torch_names import words
from torchtriage.diagnose.lint.work_syntax import parameters
from torchtriage.measure.fix.edits._flow import flow_of
from torchtriage.measure.fix.proposal import Loop, Proposal, Site, first_only
from torchtriage.measure.fix.statements import bound, free_name, indent_of, insert_after, move_before, source, wrap

CODES = words("""
    HST020 HST101 HST102 HST103 HST105 HST106 HST109 HST111 HST114 HST115 HST122 HST123 HST124 HST126 SYN001 SYN004
    COM101 LCH017 LCH105 CPY006 KRN101 MSR045
""")
EVERY = 50
OFTEN = 10
REPORTS = re.compile(
    r"(?<!load_)(save|ckpt|checkpoint|print|report|record|plot|figure|hist|image|eval(?!$)|evaluate|valid|test|metric|auc"
    r"|accuracy|score|summary|dump|show|display|monitor|snapshot|backup|deepcopy|postfix|wandb|mlflow|psnr|ssim|confusion"
    r"|precision|recall|compute$|state_dict|writer\.|logger\.|logging\.|(^|[._])log(_(?!soft|prob|sig)\w*|ger|s)?$|\.info$)",
    re.IGNORECASE,
)
LIBRARY = re.compile(r"^(torch|numpy|math|torch\.nn\.functional)\.(?!save|load)")
TRAINS = re.compile(r"\.backward\(|optimi[sz]er\.step\(|\bopt\.step\(|scheduler\.step\(|\bnext\(")
COUNTERS = re.compile(r"(^|[._])(step|iteration|iter|it|i|k|tick|batch_idx|batch_index|n_iter|idx)$")
SAVES = re.compile(r"(^|[._])(save|dump|ckpt|checkpoint|backup|snapshot)(?![a-z])", re.IGNORECASE)
MODES = re.compile(r"\.(eval|train)\((True|False)?\)$")


@first_only
def propose(site: Site) -> Iterator[Proposal | None]:
    """Yield the report in the condition that shows it, else under a condition of its own with the loop's counter."""
    statement, loop, function = site.statement, site.step_loop, site.function
    if statement is None or statement is loop:
        return
    steps = {item.node for item in site.module.loops if item.steps}
    if loop is not None and loop not in steps and counter_of(site, None)[0] and counter_of(site, loop)[1]:
        loop = None  # a callback that is given the step
    if loop is None and (function is None or not _is_report(site, [statement])):
        return
    body = loop.body if loop is not None else function.body if function is not None else []
    at = next((number for number, item in enumerate(body) if site.holds(item)), None)
    if at is None or _is_rare(body[at]):
        return
    yield _into_condition(site, body, at, loop)
    yield _under_condition(site, body, at, loop)


def _is_rare(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.If) and any(isinstance(part, ast.Mod) for part in ast.walk(statement.test))


def _is_report(site: Site, block: list[ast.stmt]) -> bool:
    """Return whether statements only report, save or evaluate, by their names, and do not train."""
    module, flow = site.module, flow_of(site.module)
    parts = [part for item in block for part in ast.walk(item)]
    calls = [part for part in parts if isinstance(part, ast.Call)]
    names = {module.name_of(call.func) or f".{getattr(call.func, 'attr', '')}" for call in calls}
    if not any(REPORTS.search(name) and not LIBRARY.search(name) for name in names):
        return False
    text = "\n".join(source(module, item) for item in block)
    if TRAINS.search(text) or "load_state_dict" in text or any(isinstance(part, _WAYS_OUT) for part in parts):
        return False
    own = bound(item for item in block if not isinstance(item, ast.AugAssign))
    adds = [part.target for part in parts if isinstance(part, ast.AugAssign)]
    if any(not isinstance(target, ast.Name) or target.id not in own for target in adds):
        return False  # a sum over all steps
    return not any(function.steps or function.has_backward for function in flow.reached(block))


_WAYS_OUT = ast.Return | ast.Break | ast.Continue | ast.Yield | ast.YieldFrom


def _into_condition(site: Site, body: list[ast.stmt], at: int, loop: Loop | None) -> Proposal | None:
    """Move a statement into the condition that alone reads what it gives."""
    module, statement = site.module, body[at]
    if not isinstance(statement, ast.Assign | ast.Expr) or not _is_report(site, [statement]) or loop is None:
        return None
    target = next((item for item in body[at + 1 :] if isinstance(item, ast.If) and _is_rare(item)), None)
    if target is None or target.orelse:
        return None
    names = bound([statement])
    if names:
        reads = [item for item in ast.walk(site.scope) if isinstance(item, ast.Name) and item.id in names]
        inside = set(ast.walk(target)) | set(ast.walk(statement))
        if any(isinstance(item.ctx, ast.Load) and item not in inside for item in reads):
            return None
    elif not (_receivers(statement) & _receivers(target)):
        return None
    edits = move_before(module, statement, target.body[0])
    what = f"compute {', '.join(sorted(names)) or source(module, statement)} only when it is reported"
    own = isinstance(statement, ast.Expr) or _adds(site, [statement])
    changes = "it adds or writes only in the reported steps" if own else ""
    return Proposal(edits, what, changes) if edits else None


def _receivers(node: ast.AST) -> set[str]:
    """Return the objects whose methods are called."""
    calls = [part.func for part in ast.walk(node) if isinstance(part, ast.Call)]
    return {path_of(func.value).partition(".")[0] for func in calls if isinstance(func, ast.Attribute)} - {"", "self"}


def _under_condition(site: Site, body: list[ast.stmt], at: int, loop: Loop | None) -> Proposal | None:
    module = site.module
    block = _block(module, body, at)
    if not _is_report(site, block) or len(block) == len(body) > 1 or _adds(site, block):
        return None
    around: ast.AST | None = loop or site.function
    if around is None:
        return None
    inside = {node for item in block for node in ast.walk(item)}
    names = bound(block)
    outside = [node for node in ast.walk(around) if isinstance(node, ast.Name) and node not in inside]
    if any(node.id in names and isinstance(node.ctx, ast.Load) for node in outside):
        return None
    counter, more = counter_of(site, loop)
    if not counter:
        return None
    every = _interval(module, around)
    edits = [*more, *wrap(module, block, f"if {counter} % {every} == 0:")]
    later = names & {
        node.id
        for node in ast.walk(site.scope)
        if isinstance(node, ast.Name) and node not in inside and isinstance(node.ctx, ast.Load)
    }
    if loop is not None and (later or site.finding.code == "HST102" or _saves(module, block)):
        last = insert_after(module, loop, _outdented(module, block))
        if last is None:
            return None
        edits.append(last)
    called = source(module, block[0]).splitlines()[0]
    changes = f"it saves, prints or evaluates only every {every} steps"
    return Proposal(tuple(edits), f"run this every {every} steps: {called[:60]}", changes=changes)


def _saves(module: Module, block: list[ast.stmt]) -> bool:
    """Return whether statements write what is read after the run: the last of it has to be written then."""
    calls = [part for item in block for part in ast.walk(item) if isinstance(part, ast.Call)]
    return any(SAVES.search(module.name_of(call.func) or f".{getattr(call.func, 'attr', '')}") for call in calls)


def _block(module: Module, body: list[ast.stmt], at: int) -> list[ast.stmt]:
    """Return a statement with those before that only it needs, those after that only report what it gives."""
    first, last = at, at
    while first > 0:
        before, names = body[first - 1], bound([body[first - 1]])
        inside = {node for item in body[first - 1 : last + 1] for node in ast.walk(item)}
        used = [node for name in names for node in module.reads(name, module.scope(before))]
        only_here = used and isinstance(before, ast.Assign) and all(node in inside for node in used)
        if not only_here and not MODES.search(source(module, before)):
            break
        first -= 1
    while last + 1 < len(body):
        names = bound(body[first : last + 1])
        after = body[last + 1]
        if not names & names_in(after) and not MODES.search(source(module, after)):
            break
        last += 1
    return body[first : last + 1]


def _adds(site: Site, block: list[ast.stmt]) -> bool:
    """Return whether each step adds something of its own: a row to a file, a batch to a metric."""
    calls = [part for item in block for part in ast.walk(item) if isinstance(part, ast.Call)]
    reached = [function.node for function in flow_of(site.module).reached(block)]
    texts = [source(site.module, node) for node in (*block, *reached)]
    return any(re.search(r"""["']a[bt+]?["']|self\.\w+ \+= """, text) for text in texts) or any(
        isinstance(call.func, ast.Attribute) and call.func.attr in ("update", "write", "writerow", "put")
        for call in calls
    )


def counter_of(site: Site, loop: Loop | None) -> tuple[str, list[SourceEdit]]:
    """Return the expression that counts steps, and the edits that make one where there is none."""
    module = site.module
    if loop is None:
        function = site.function
        named = parameters(function) if function is not None else set()
        paths = {path_of(node) for node in ast.walk(function or module.tree) if isinstance(node, ast.Attribute)}
        found = [name for name in (*sorted(named), *sorted(paths)) if COUNTERS.search(name)]
        return (found[0] if found else ""), []
    for item in loop.body:
        adds = isinstance(item, ast.AugAssign) and isinstance(item.op, ast.Add) and literal(item.value) == 1
        if isinstance(item, ast.AugAssign) and adds and COUNTERS.search(path_of(item.target)):
            return path_of(item.target), []
    if not isinstance(loop, ast.For):
        return "", []
    called = path_called(loop.iter)
    if called in ("range", "trange") and isinstance(loop.target, ast.Name) and loop.target.id != "_":
        return loop.target.id, []
    if isinstance(loop.target, ast.Tuple) and isinstance(loop.target.elts[0], ast.Name):
        inner = loop.iter
        while isinstance(inner, ast.Call) and path_of(inner.func) != "enumerate" and inner.args:
            inner = inner.args[0]
        if path_called(inner) == "enumerate":
            return loop.target.elts[0].id, []
    name = free_name(module, "step", "i", "n_step", "turn")
    if not name:
        return "", []
    target, over = source(module, loop.target), source(module, loop.iter)
    if isinstance(loop.target, ast.Tuple):
        target = f"({target})" if not target.startswith("(") else target
    if called in ("range", "trange"):
        return name, [replace_node(loop.target, name)]
    return name, [replace_node(loop.target, f"{name}, {target}"), replace_node(loop.iter, f"enumerate({over})")]


def _interval(module: Module, around: ast.AST) -> str:
    """Return how often the code around already reports."""
    for node in ast.walk(around):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod):
            number = literal(node.right)
            if isinstance(number, int) and number >= OFTEN:
                return source(module, node.right)
            if number is ... and re.search(r"every|freq|interval|steps", path_of(node.right)):
                return source(module, node.right)
    return str(EVERY)


def _outdented(module: Module, block: list[ast.stmt]) -> str:
    """Return the text of statements in a loop without the loop's own indentation and theirs."""
    inner = indent_of(module, block[0]) or ""
    rows = lines_of(module.text)[block[0].lineno - 1 : block[-1].end_lineno]
    return "".join(row.removeprefix(inner) for row in rows)
