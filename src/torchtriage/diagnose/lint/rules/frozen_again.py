"""A frozen model reruns on the same data every epoch.

Looks like: in a loop over epochs or inner updates, ``with torch.no_grad(): ref = logps(self.ref, batch)``,
    ``teacher(x)`` or ``backbone(x)`` whose weights never change, for batches that recur.
Slow because: its results are the same in all rounds after the first.
Fix: compute them before the rounds, keep them with the data (features, log-probabilities, embeddings), and load them
    with the batch.
Quiet when: the inputs are augmented or drawn at random, the model is trained or averaged, or the loader is not iterated
    again.
Source: TRL documentation of ``precompute_ref_log_probs``.
"""

import ast
import re
from collections.abc import Iterator

from torchtriage.diagnose.lint.base import Fix, Hit, Module, Rule, SourceCall, SourceLoop, names_in, text_of
from torchtriage.diagnose.lint.syntax import given_names, path_of

RULE = Rule("LCH111", "frozen-again", "launch", "A frozen model reruns on the same data every epoch", "medium")

FIX = Fix(
    text="Run it once, and store its outputs with the data.",
    code="""with torch.no_grad():                        # once, before the rounds
    data["ref"] = torch.cat([logps(ref, part) for part in data["ids"].split(8)])""",
    link="https://huggingface.co/docs/trl/dpo_trainer",
)

_FROZEN = re.compile(
    r"(^|[._])(ref|reference|frozen|teacher|backbone|encoder|extractor|vgg|clip|bert|lpips|text_encoder|feature_net)"
    r"(_(model|policy|net|network|lm))?$"
)
_RANDOM = re.compile(
    r"Random[A-Z]|augment|flip|jitter|crop|mixup|cutmix|noise|rand(n|int|om)?(_like)?\(|AutoAugment|dropout_input|perturb"
    r"|\bema|momentum|polyak|load_state_dict|copy_\(",
    re.IGNORECASE,
)
_FREEZES = re.compile(r"requires_grad(_\(False|\s*=\s*False)|\.eval\(\)")


def find(module: Module) -> Iterator[Hit]:
    """Yield runs of frozen models on batches of data that rounds go through again."""
    if not module.trains or not _FREEZES.search(module.text):
        return
    for call in module.calls:
        loop = call.context.step_loop or call.context.loop
        if loop is None or call.context.rare or not call.context.no_grad or not _has_rounds(loop):
            continue
        model = _model(call)
        if not model or not _FROZEN.search(model) or _is_trained(module, model):
            continue
        body = module.text_of(call.context.function)
        if _RANDOM.search(body) or re.search(r"Random[A-Z]|augment|flip|jitter|RandAug", module.text):
            continue
        if _takes_batch(module, call, loop):
            yield Hit(call.node, f"the same in every round: {text_of(call.node)}", "forward")


def _model(call: SourceCall) -> str:
    """Return the path of the model that a call runs, itself or in a function that it is given to."""
    if call.runs_module:
        return path_of(call.node.func).removesuffix(".forward")
    if any(callee.runs_module for callee in call.callees):
        return next((path for item in call.node.args if _FROZEN.search(path := path_of(item))), "")
    return ""


def _has_rounds(loop: SourceLoop) -> bool:
    """Return whether a loop around goes through the same batches again and again."""
    outer = loop.outer
    if outer is None or outer.comprehension:
        return loop.function is not None and loop.function.called_again and loop.over_loader and loop.trains
    if not isinstance(outer.node, ast.For) or not isinstance(loop.node, ast.For):
        return False
    counted = "range(" in text_of(outer.node.iter, 200)
    inside = names_in(loop.node.iter) & (outer.targets | outer.assigned.keys())
    return counted and not inside


def _is_trained(module: Module, path: str) -> bool:
    """Return whether an optimizer has a model's weights, by its text."""
    last = re.escape(path.rpartition(".")[2])
    return re.search(rf"(Adam\w*|SGD|optim\w*)\([^\n]*\b{last}\.", module.text) is not None or (
        re.search(rf"\b{last}\.(train\(\)|zero_grad)", module.text) is not None
    )


def _takes_batch(module: Module, call: SourceCall, loop: SourceLoop) -> bool:
    """Return whether all that a call is given comes from the batch of this turn."""
    names = given_names(call.node)
    for _ in range(3):
        for assign in module.assigns:
            if assign.target in names and loop in assign.context.loops():
                names |= names_in(assign.expression)
    return bool(names & loop.targets)
