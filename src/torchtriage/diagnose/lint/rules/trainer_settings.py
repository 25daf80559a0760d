"""A trainer is set to check, copy or wait more often than training needs.

Looks like: ``Trainer(detect_anomaly=True)``, ``profiler="advanced"``, ``deterministic=True``, ``precision=64``,
    ``strategy="dp"``, ``val_check_interval=20``, ``reload_dataloaders_every_n_epochs=1`` of Lightning;
    ``TrainingArguments(logging_steps=1, eval_steps=10, torch_empty_cache_steps=1, dataloader_pin_memory=False)``.
Slow because: each is a debugging aid, a wait for the device, or a pass over other data, repeated through the run.
Fix: use the default, or a larger interval.
Quiet when: the setting is not a constant, or is the default.
Source: Lightning documentation, "Speed up model training"; Hugging Face documentation of ``TrainingArguments``.
"""

import ast
import re
from collections.abc import Callable, Iterator

from torchtriage.diagnose.lint.base import Fix, Hit, Module, Rule, Severity, SourceCall, keyword, literal

RULE = Rule("CFG103", "trainer-settings", "config", "A trainer's setting costs every step", "medium")

FIX = Fix(
    text="Keep the default, or use a larger interval.",
    code="""trainer = Trainer(accelerator="gpu", devices=8, strategy="ddp", precision="bf16-mixed")
args = TrainingArguments(output_dir, logging_steps=50, eval_strategy="epoch", bf16=True)""",
    link="https://lightning.ai/docs/pytorch/stable/advanced/speed.html",
)

FEW = 20
"""Steps between two evaluations up to which these are a large share of the time."""

_Row = tuple[Callable[[object], bool], str, Severity | None]


def _is(*wanted: object) -> Callable[[object], bool]:
    return lambda value: any(value is item or (isinstance(item, str) and value == item) for item in wanted)


def _up_to(most: int) -> Callable[[object], bool]:
    return lambda value: type(value) is int and 0 < value <= most


def _often(value: object) -> bool:
    return _up_to(FEW)(value) or (isinstance(value, float) and 0 < value <= 0.02)


_LIGHTNING: dict[str, _Row] = {
    "detect_anomaly": (_is(True), "every operator of the backward pass is checked", "high"),
    "profiler": (_is("advanced", "pytorch"), "a profiler runs all the time", None),
    "deterministic": (_is(True), "only deterministic kernels are taken", "low"),
    "precision": (lambda value: value in (64, "64", "64-true"), "everything is computed in float64", None),
    "strategy": (_is("dp", "ddp_find_unused_parameters_true"), "the slow form of data parallelism is chosen", None),
    "val_check_interval": (_often, "the validation set is run every few steps", None),
    "reload_dataloaders_every_n_epochs": (_up_to(1), "loaders and their workers restart in every epoch", "low"),
    "log_every_n_steps": (_up_to(1), "metrics are read and written in every step", "low"),
    "track_grad_norm": (_up_to(2), "the norm of each gradient is computed in every step", "low"),
}
_HUGGING_FACE: dict[str, _Row] = {
    "logging_steps": (_up_to(1), "the loss is read and written in every step", "low"),
    "eval_steps": (_up_to(FEW), "the evaluation set is run every few steps", None),
    "torch_empty_cache_steps": (_up_to(FEW), "the memory cache is emptied every few steps", None),
    "dataloader_pin_memory": (_is(False), "batches go to the device from memory that is not pinned", "low"),
    "full_determinism": (_is(True), "only deterministic kernels are taken", "low"),
    "ddp_find_unused_parameters": (_is(True), "every step searches the graph for unused parameters", None),
    "debug": (_is("underflow_overflow"), "every layer's output is checked for overflow", None),
    "eval_accumulation_steps": (_up_to(1), "each batch of predictions is copied to the host by itself", "low"),
    "tf32": (_is(False), "matrix products may not use TF32", "low"),
    "include_num_input_tokens_seen": (_is(True, "all"), "the ranks exchange token counts in every step", "low"),
}
_ARGUMENTS = re.compile(r"TrainingArguments$|^(SFT|DPO|ORPO|KTO|CPO|GRPO|PPO|RLOO|Reward|GKD)Config$")


def find(module: Module) -> Iterator[Hit]:
    """Yield settings of a trainer whose constant value costs."""
    for call in module.calls:
        table = _table(call)
        if table is None or call.context.seldom:
            continue
        for given in call.node.keywords:
            row = table.get(given.arg or "")
            if row is None or _ignored(call, given.arg or ""):
                continue
            named = isinstance(given.value, ast.Name)
            value = module.constant(given.value, call.context) if named else literal(given.value)
            if row[0](value):
                yield Hit(given.value, f"{row[1]}: {given.arg}={value!r}", call.attr, severity=row[2])


def _table(call: SourceCall) -> dict[str, _Row] | None:
    if _ARGUMENTS.search(call.attr):
        return _HUGGING_FACE
    own = call.name.partition(".")[0] in ("lightning", "pytorch_lightning")
    return _LIGHTNING if own and call.attr == "Trainer" else None


def _ignored(call: SourceCall, name: str) -> bool:
    """Return whether another setting says that this one does nothing."""
    if name == "dataloader_pin_memory":
        return keyword(call.node, "use_cpu") is not None or keyword(call.node, "no_cuda") is not None
    if name != "eval_steps":
        return False
    strategy = keyword(call.node, "eval_strategy") or keyword(call.node, "evaluation_strategy")
    return strategy is None or getattr(strategy, "value", "steps") in ("no", "epoch")
