"""A model runs on a list of inputs one by one.

Looks like: ``for text in texts: model(**tokenizer(text, return_tensors="pt"))``, ``model.generate`` for each prompt,
    ``[encoder.encode(text) for text in texts]``, ``df["text"].apply(lambda text: pipe(text))``,
    ``model(preprocess(image).unsqueeze(0))`` for each file; a policy asked for each environment.
Slow because: a call on one input costs about what a call on sixteen does: the launches and the weights that are read
    are the same.
Fix: pad a batch of them: ``tokenizer(texts[i : i + 32], padding=True)``, ``encoder.encode(texts)``, ``pipe(texts,
    batch_size=32)``.
Quiet when: the inputs arrive one at a time, the loop goes over batches, or trains.
Source: transformers documentation, "Pipeline batching".
"""

import ast
import re
from collections.abc import Iterator

from torchtriage.diagnose.lint.base import Fix, Hit, Module, Rule, SourceCall, SourceFunction, SourceLoop, text_of
from torchtriage.diagnose.lint.syntax import arguments, given_names, keyword, literal, method_of, names_in, path_of

RULE = Rule("LCH107", "single-inputs", "launch", "A model runs on a list of inputs one by one", "medium")

FIX = Fix(
    text="Run them in batches.",
    code="""for start in range(0, len(texts), 32):
    batch = tokenizer(texts[start : start + 32], padding=True, return_tensors="pt").to(device)
    out = model(**batch)""",
    link="https://huggingface.co/docs/transformers/main_classes/pipelines#pipeline-batching",
)

_ENCODERS = re.compile(r"(^|\.)(SentenceTransformer|CrossEncoder|FlagModel|INSTRUCTOR|BGEM3FlagModel|pipeline)$")
_ASKS = frozenset(["encode", "predict", "embed", "rank", "__call__"])
_PREPARES = re.compile(
    r"tok(enizer?|enize)?$|process(or)?$|transforms?(_\w{1,40})?$|extractor$|^encode(_plus)?$|^(to_)?tensor$"
)
_MANY = re.compile(
    r"batch|chunk|group|loader|shard|mini|stream|queue|camera|socket|stdin|layer|block|model|net|expert|step|epoch|prefix"
    r"|window|timestep|scale|level|beam|views|turn|round",
    re.IGNORECASE,
)
_ARRIVES = re.compile(r"\binput\(|stdin|\.recv\(|\.get\(\)|VideoCapture|\.read\(\)")
_APPLIES = frozenset(["apply", "progress_apply", "map", "parallel_apply"])
_MEASURES = re.compile(r"warm|bench|latency|profil|time|repeat|reps?$|trial|sample|n_|num_", re.IGNORECASE)
_ENVIRONMENTS = re.compile(r"\benvs\b|\benvironments\b|n_envs|num_envs")
_FEW = 4


def find(module: Module) -> Iterator[Hit]:
    """Yield runs of models in loops over single inputs."""
    encoders = {call.target for call in module.calls if _ENCODERS.search(call.name or call.attr) and call.target}
    done: set[SourceLoop] = set()
    for call in module.calls:
        runs = call.runs_module and not call.receiver.of.startswith("torch.")
        path = path_of(call.node.func) if encoders else ""
        asks = path in encoders or (path.rpartition(".")[0] in encoders and call.attr in _ASKS)
        if not (runs or asks):
            continue
        if _is_applied(module, call.node):
            yield Hit(call.node, f"runs on one row at a time: {text_of(call.node)}", "forward")
            continue
        loop = _items(module, call)
        if loop is None or loop in done:
            continue
        made = _made(module, call, loop)
        each = not isinstance(loop.node, ast.While) and _ENVIRONMENTS.search(text_of(loop.node.iter)) is not None
        if asks or (each and made) or any(_is_single(node, loop.targets) for part in made for node in ast.walk(part)):
            done.add(loop)
            yield Hit(call.node, f"runs on one input at a time: {text_of(call.node)}", "forward")


def _is_applied(module: Module, node: ast.Call) -> bool:
    """Return whether a call stands in a function that a table applies to each row."""
    if "apply(" not in module.text:
        return False
    outer = module.around(node, ast.Lambda, ast.FunctionDef)
    around = module.parents.get(outer) if isinstance(outer, ast.Lambda) else None
    if isinstance(outer, ast.FunctionDef):
        users = module.reads(outer.name, module.scope(outer))
        around = module.parents.get(users[0]) if len(users) == 1 else None
    return method_of(around) in _APPLIES - {"map"}


def _items(module: Module, call: SourceCall) -> SourceLoop | None:
    """Return the loop whose turns each take one of many inputs, None where there is none."""
    loop, function = call.context.loop, call.context.function
    if loop is None or isinstance(loop.node, ast.While) or call.context.rare or loop.times or not loop.targets:
        return None
    if loop.trains or loop.over_loader or any(outer.trains for outer in call.context.loops()):
        return None
    if loop.turns_below(_FEW) or names_in(call.node.func) & loop.targets or _is_framework(module, function):
        return None
    if function is not None and (function.name == "forward" or function.name.startswith("_") or function.has_backward):
        return None
    where = text_of(loop.node.iter, 200)
    if any(_MANY.search(name) for name in (where, *loop.targets)) or _ARRIVES.search(where):
        return None
    if re.search(r"range\([^,]*,[^,]*,", where) or (function is not None and _MEASURES.search(function.name)):
        return None
    # a plural is a batch
    if any(name.endswith("s") and not name.endswith("ss") for name in loop.targets):
        return None
    if isinstance(loop.node, ast.For) and any(_ARRIVES.search(text_of(item, 400)) for item in loop.node.body):
        return None
    return loop


def _is_framework(module: Module, function: SourceFunction | None) -> bool:
    """Return whether a method is part of a framework that others build on, in a file that runs nothing."""
    owner = function.owner if function is not None else None
    if module.is_program or owner is None:
        return False
    return any(base.rpartition(".")[2] not in module.classes for base in owner.bases)


def _made(module: Module, call: SourceCall, loop: SourceLoop) -> list[ast.expr]:
    """Return the expressions that make a call's input in the same turn, where they begin at the turn's own item."""
    names, made = given_names(call.node), arguments(call.node)
    for _ in range(3):
        for assign in module.assigns:
            if assign.context.loop is loop and assign.target in names and assign.expression not in made:
                made.append(assign.expression)
                names |= names_in(assign.expression)
    return made if names & loop.targets else []


def _is_single(node: ast.AST, targets: frozenset[str]) -> bool:
    """Return whether one item is made a batch of its own, or is tokenized alone."""
    if isinstance(node, ast.Subscript):
        return literal(node.slice) is None and bool(names_in(node.value) & targets)
    if not isinstance(node, ast.Call):
        return False
    last = text_of(node.func).rpartition(".")[2]
    if isinstance(node.func, ast.Attribute) and last == "unsqueeze":
        return bool(node.args) and literal(node.args[0]) == 0
    if last in ("tensor", "as_tensor") and node.args:
        given = node.args[0]
        return isinstance(given, ast.List) and len(given.elts) == 1
    if not _PREPARES.search(last) or keyword(node, "return_tensors") is None:
        return False
    return any(_is_item(item, targets) for item in arguments(node)[:2])


def _is_item(node: ast.expr, targets: frozenset[str]) -> bool:
    """Return whether an expression is one item: the target of the loop, a field of it, a list of it alone."""
    if isinstance(node, ast.List):
        return len(node.elts) == 1 and _is_item(node.elts[0], targets)
    if isinstance(node, ast.Subscript):
        return _is_item(node.value, targets) or (isinstance(node.slice, ast.Name) and node.slice.id in targets)
    if isinstance(node, ast.Attribute):
        return _is_item(node.value, targets)
    if isinstance(node, ast.JoinedStr | ast.BinOp):
        return bool(names_in(node) & targets)
    return isinstance(node, ast.Name) and (node.id in targets or not _MANY.search(node.id))
