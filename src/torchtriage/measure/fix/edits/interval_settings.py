"""Give settings of how often to save, log and evaluate a larger number, where they say in every step or nearly so."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from torchtriage.diagnose.lint.edits import replace_node
from torchtriage.diagnose.lint.syntax import defaults, keyword, literal, option_of, path_of
from torchtriage.diagnose.lint.torch_names import words
from torchtriage.measure.fix.edits.less_often import EVERY, OFTEN
from torchtriage.measure.fix.proposal import Proposal, Site

CODES = words("""
    HST020 HST101 HST102 HST103 HST109 HST114 HST115 HST122 HST123 HST124 SYN001 SYN004 CFG103 COM101 CPY006
""")
FRAMEWORKS = words("""
    save_steps eval_steps logging_steps log_every_n_steps every_n_train_steps log_freq print_freq logging_interval
    evaluation_steps checkpointing_steps validation_steps
""")


def propose(site: Site) -> Iterator[Proposal]:
    """Yield a larger number for the setting that the condition around the line asks, or a framework is given."""
    remainder = _remainder(site)
    constants: list[ast.Constant] = []
    if remainder is not None:
        if isinstance(remainder, ast.Constant):
            constants = [remainder]
            name = "the remainder"
        else:
            name = path_of(remainder).rpartition(".")[2]
            constants = list(_constants(site.module.tree, {name}))
    else:
        statement = site.statement
        calls = [part for part in ast.walk(statement) if isinstance(part, ast.Call)] if statement is not None else []
        if not any(path_of(call.func).endswith((".train", ".fit", "Arguments", "Trainer", "Config")) for call in calls):
            return
        constants, name = list(_constants(site.module.tree, FRAMEWORKS)), "a setting"
    constants = [item for item in constants if type(item.value) is int and 0 < item.value <= OFTEN]
    if constants:
        edits = tuple(replace_node(item, str(EVERY)) for item in dict.fromkeys(constants))
        lines = sorted({f"line {item.lineno}" for item in constants})
        what = f"set {name} to {EVERY}: {', '.join(lines)}"
        yield Proposal(edits, what, changes=f"reports, checkpoints or evaluations come every {EVERY} steps")


def _remainder(site: Site) -> ast.expr | None:
    """Return what the step is divided by in a condition around the line."""
    for node in site.outward:
        for part in ast.walk(node.test) if isinstance(node, ast.If) else ():
            if isinstance(part, ast.BinOp) and isinstance(part.op, ast.Mod):
                return part.right
    return None


def _constants(tree: ast.Module, names: frozenset[str] | set[str]) -> Iterator[ast.Constant]:
    """Yield the numbers that settings with these names are given: defaults, arguments, fields, options, entries."""
    for node in ast.walk(tree):
        found: list[ast.expr | None] = []
        if isinstance(node, ast.keyword) and node.arg in names:
            found.append(node.value)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            found += [default for name, default in defaults(node).items() if name in names]
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if any(path_of(target).rpartition(".")[2] in names for target in targets):
                found.append(node.value)
        elif isinstance(node, ast.Dict):
            found += [value for key, value in zip(node.keys, node.values, strict=True) if literal(key) in names]
        elif isinstance(node, ast.Call) and path_of(node.func).endswith(("add_argument", "option")):
            found += [keyword(node, "default")] if option_of(node) in names else []
        yield from (item for item in found if isinstance(item, ast.Constant))
