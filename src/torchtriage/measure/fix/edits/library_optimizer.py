"""Use PyTorch's fused optimizer in the place of a class that updates one parameter after another in Python."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from torchtriage.diagnose.lint.base import keyword, replace_node
from torchtriage.diagnose.lint.facts import Class, Module, SourceCall
from torchtriage.diagnose.lint.syntax import path_of
from torchtriage.measure.fix.edits._torch import calls_at, function_at, torch_in
from torchtriage.measure.fix.proposal import Proposal, Site
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


def propose(site: Site) -> Iterator[Proposal]:
    """Yield the optimizer of PyTorch that takes the same options; the trial shows whether it is the same."""
    module, function = site.module, function_at(site)
    owners = [function.owner] if function is not None else []
    owners += [callee.owner for call in calls_at(site) if call.attr == "step" for callee in call.callees]
    for owner in owners:
        if owner is None or owner.is_module or not {"step", "__init__"} <= set(owner.methods):
            continue
        made = [call for call in module.calls if call.attr == owner.name and call.node not in ast.walk(owner.node)]
        if len(made) != 1 or not made[0].target or _is_known(module, owner, made[0].target):
            continue
        text = _replacement(module, owner, made[0])
        out = remove(module, owner.node)
        if text and out is not None:
            imports = torch_in(module)[1]
            what = f"{text.partition('(')[0]} in the place of {owner.name}"
            yield Proposal((replace_node(made[0].node, text), out, *imports), what)
            return


def _is_known(module: Module, owner: Class, target: str) -> bool:
    """Return whether the program uses more of the class than an optimizer has."""
    inside = set(ast.walk(owner.node))
    return any(
        isinstance(node, ast.Attribute)
        and path_of(node.value) == target
        and node.attr not in USED
        and node not in inside
        for node in module.parents
    )


def _replacement(module: Module, owner: Class, call: SourceCall) -> str:
    given = _given(owner, call)
    if given is None or "params" not in given or "lr" not in given:
        return ""
    step = module.text_of(owner.methods["step"])
    if not re.search(r"\.grad\b", step):
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
    args = owner.methods["__init__"].node.args
    places = [arg.arg for arg in args.args][1:]
    defaults = dict(zip(reversed(places), reversed(args.defaults), strict=False))
    defaults |= {arg.arg: value for arg, value in zip(args.kwonlyargs, args.kw_defaults, strict=True) if value}
    unclear = args.vararg or args.kwarg or any(item.arg is None for item in call.node.keywords)
    given: dict[str, ast.expr] = {}
    for name in [*places, *(arg.arg for arg in args.kwonlyargs)]:
        value = keyword(call.node, name)
        if value is None and name in places and places.index(name) < len(call.node.args):
            value = call.node.args[places.index(name)]
        value = value or defaults.get(name)
        if unclear or name not in NAMES or value is None:
            return None
        given[NAMES[name]] = value
    return given
