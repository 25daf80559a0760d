"""Use PyTorch's fused optimizer in the place of a class that updates one parameter after another in Python."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from torchtriage.diagnose.lint.base import replace_node
from torchtriage.diagnose.lint.facts import Class, Module, SourceCall
from torchtriage.diagnose.lint.syntax import assigned_pairs, defaults, literal, path_called, path_of
from torchtriage.measure.fix.edits._torch import calls_at, torch_in
from torchtriage.measure.fix.proposal import Proposal, Site, first_only
from torchtriage.measure.fix.statements import remove, source

CODES = frozenset({"HST020", "HST114", "LCH014", "LCH015", "LCH016"})

OPTIONS = {
    "params": "params parameters",
    "lr": "lr learning_rate step_size eta",
    "betas": "betas",
    "beta1": "beta1 b1 beta_1",
    "beta2": "beta2 b2 beta_2",
    "eps": "eps epsilon",
    "weight_decay": "weight_decay wd decay l2",
    "momentum": "momentum mu",
}
NAMES = {name: option for option, names in OPTIONS.items() for name in names.split()}
USED = frozenset({"step", "zero_grad", "state_dict", "param_groups"})
DECOUPLED = r"1(\.0)?\s*-\s*[\w.\[\]\"']*\s*\*\s*[\w.\[\]\"']*(wd|decay)"


@first_only
def propose(site: Site) -> Iterator[Proposal]:
    """Yield the optimizer of PyTorch that takes the same options; the trial shows whether it is the same."""
    module, function = site.module, site.known_function
    owners = [function.owner] if function is not None else []
    owners += [callee.owner for call in calls_at(site) if call.attr == "step" for callee in call.callees]
    for owner in owners:
        if owner is None or owner.is_module or not {"step", "__init__"} <= set(owner.methods):
            continue
        made = [call for call in module.calls if call.attr == owner.name and call.node not in ast.walk(owner.node)]
        if len(made) != 1 or not made[0].target or _is_known(module, owner, made[0].target):
            continue
        if _is_set_later(module, owner):
            continue
        text = _replacement(module, owner, made[0])
        out = remove(module, owner.node)
        if text and out is not None:
            imports = torch_in(module)[1]
            what = f"{text.partition('(')[0]} instead of {owner.name}"
            yield Proposal((replace_node(made[0].node, text), out, *imports), what)


def _is_known(module: Module, owner: Class, target: str) -> bool:
    """Return whether the program uses more of the class than an optimizer has."""
    inside = set(ast.walk(owner.node))
    last = target.rpartition(".")[2] if "." in target else ""
    named = [
        node
        for node in module.parents
        if node not in inside
        and isinstance(node, ast.Name | ast.Attribute)
        and (path_of(node) == target or (isinstance(node, ast.Attribute) and node.attr == last))
        and isinstance(node.ctx, ast.Load)
    ]
    outer = [module.parents[node] for node in named]
    return not all(isinstance(node, ast.Attribute) and node.attr in USED for node in outer)


def _is_set_later(module: Module, owner: Class) -> bool:
    """Return whether anything but ``__init__`` gives an option another value."""
    inside, begin = set(ast.walk(owner.node)), set(ast.walk(owner.methods["__init__"].node))
    options = set(NAMES)
    for target, value in (pair for node in begin if isinstance(node, ast.Assign) for pair in assigned_pairs(node)):
        if isinstance(target, ast.Attribute) and isinstance(value, ast.Name) and value.id in NAMES:
            options.add(target.attr)
    for node in module.parents:
        if path_called(node) == "setattr":
            return True
        place = node.value if isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load) else node
        stored = place is not node or (isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Load))
        if not stored or not isinstance(place, ast.Attribute) or place.attr not in options or node in begin:
            continue
        if node in inside or path_of(place.value) != "self":
            return True
    return False


def _has_schedule(module: Module, owner: Class) -> bool:
    """Return whether a class does something else with its number of steps than to correct a bias: ``1 - beta**t``."""
    methods = [item.node for name, item in owner.methods.items() if name != "__init__"]
    nodes = [node for method in methods for node in ast.walk(method)]
    counters = {
        ast.unparse(node.target) for node in nodes if isinstance(node, ast.AugAssign) and literal(node.value) == 1
    }
    assigned = [node for node in nodes if isinstance(node, ast.Assign)]
    for assign in assigned:
        target, value = ast.unparse(assign.targets[0]), assign.value
        if isinstance(value, ast.BinOp) and literal(value.right) == 1 and ast.unparse(value.left) == target:
            counters.add(target)
    counters |= {ast.unparse(node.targets[0]) for node in assigned if ast.unparse(node.value) in counters}
    for node in nodes:
        outer = module.parents.get(node)
        if isinstance(node, ast.FloorDiv | ast.Mod):
            return True
        if isinstance(node, ast.Compare) and not _is_plain(node, counters):
            return True
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow) and not isinstance(node.right, ast.Constant):
            if not isinstance(outer, ast.BinOp) or not isinstance(outer.op, ast.Sub) or outer.right is not node:
                return True
            if not isinstance(outer.left, ast.Constant):
                return True
        read = isinstance(node, ast.expr) and isinstance(getattr(node, "ctx", None), ast.Load)
        if read and ast.unparse(node) in counters and isinstance(outer, ast.BinOp | ast.Call | ast.If | ast.IfExp):
            power = isinstance(outer, ast.BinOp) and isinstance(outer.op, ast.Pow) and outer.right is node
            counts = isinstance(outer, ast.BinOp) and isinstance(module.parents.get(outer), ast.Assign)
            if not power and not counts:
                return True
    return False


def _is_plain(test: ast.Compare, counters: set[str]) -> bool:
    """Return whether a comparison asks for what is there, or for an option that is not zero."""
    if all(isinstance(op, ast.Is | ast.IsNot | ast.In | ast.NotIn) for op in test.ops):
        return True
    zero = all(literal(item) == 0 for item in test.comparators)
    return zero and ast.unparse(test.left) not in counters


def _replacement(module: Module, owner: Class, call: SourceCall) -> str:
    given = _given(owner, call)
    if given is None or "params" not in given or "lr" not in given:
        return ""
    step = module.text_of(owner.methods["step"])
    if not re.search(r"\.grad\b", step) or _has_schedule(module, owner):
        return ""
    text = {name: source(module, node) for name, node in given.items()}
    if "beta1" in text and "beta2" in text:
        text["betas"] = f"({text.pop('beta1')}, {text.pop('beta2')})"
    torch = torch_in(module)[0]
    adaptive = "betas" in text or "sqrt" in step
    if not adaptive and ("eps" in text or "beta1" in text):
        return ""
    if adaptive and ("betas" not in text or "momentum" in text):
        return ""
    decoupled = "weight_decay" in text and re.search(DECOUPLED, step)
    name = ("AdamW" if decoupled else "Adam") if adaptive else "SGD"
    params = text.pop("params")
    options = ", ".join(f"{key}={text[key]}" for key in OPTIONS if key in text)
    return f"{torch}.optim.{name}({params}, {options}, fused=True)"


def _given(owner: Class, call: SourceCall) -> dict[str, ast.expr] | None:
    """Return what a constructor gets, by the optimizer's name for it; None where something else is among it."""
    init = owner.methods["__init__"]
    args, left_out = init.node.args, defaults(init.node)
    unclear = args.vararg or args.kwarg or any(item.arg is None for item in call.node.keywords)
    given: dict[str, ast.expr] = {}
    for name in [*init.places, *(arg.arg for arg in args.kwonlyargs)]:
        value = init.given_by(call.node).get(name) or left_out.get(name)
        if unclear or name not in NAMES or value is None:
            return None
        given[NAMES[name]] = value
    return given
