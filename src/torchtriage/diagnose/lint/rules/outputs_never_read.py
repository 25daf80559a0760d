"""A model returns, and something keeps, more than is ever read.

Looks like: ``output_hidden_states=True`` or ``output_attentions=True`` in a file that reads neither; a ``Trainer`` with
    ``compute_metrics`` that takes the ``argmax`` of the logits of a language model, and without
    ``preprocess_logits_for_metrics``; ``logits.append(out.logits)`` for each batch, of which the ``argmax`` is taken
    once all are there.
Slow because: all layers' states stay in memory, attention weights switch the fused kernels off, and the logits of a
    whole evaluation set are hundreds of gigabytes for a vocabulary.
Fix: leave the options off; ``preprocess_logits_for_metrics=lambda logits, labels: logits.argmax(-1)``.
Quiet when: anything in the file reads them.
Source: transformers documentation of ``Trainer``.
"""

import ast
import re
from collections.abc import Iterator

from torchtriage.diagnose.lint.base import Fix, Hit, Module, Rule, keyword, literal, text_of, unpacks

RULE = Rule("MEM123", "outputs-never-read", "memory", "Model outputs are kept but never read", "low")

FIX = Fix(
    text="Reduce outputs as soon as they arrive, and do not ask for others.",
    code="""trainer = Trainer(model, args, compute_metrics=accuracy,
                  preprocess_logits_for_metrics=lambda logits, labels: logits.argmax(-1))""",
    link="https://huggingface.co/docs/transformers/main_classes/trainer",
)

_OPTIONS = {"output_hidden_states": "hidden_states", "output_attentions": "attentions"}
_LANGUAGE = re.compile(r"For(CausalLM|MaskedLM|ConditionalGeneration|Seq2SeqLM|PreTraining)|LMHead|WithLMHead")
_REDUCES = re.compile(r"\bargmax\(|\.max\(|topk\(")


def find(module: Module) -> Iterator[Hit]:
    """Yield options whose outputs nobody reads, and logits that are kept whole."""
    for option, output in _OPTIONS.items():
        if option in module.text:
            yield from _asked(module, option, output)
    if "compute_metrics" in module.text and _LANGUAGE.search(module.text):
        yield from _metrics(module)
    if "logits" in module.text:
        yield from _gathered(module)


def _asked(module: Module, option: str, output: str) -> Iterator[Hit]:
    # by position, by unpacking or by name: whatever may be a read of it
    if re.search(rf"(?<!output_){output}|\w\[-?[1-9]\]|\bdef forward\(|\*\*\w*kwargs", module.text):
        return
    for call in module.calls:
        if literal(keyword(call.node, option)) is True:
            yield Hit(call.node, f"{option}=True, and nothing here reads {output}", "forward")


def _metrics(module: Module) -> Iterator[Hit]:
    for call in module.calls:
        given = keyword(call.node, "compute_metrics")
        if not call.attr.endswith("Trainer") or given is None or literal(given) is None or unpacks(call.node):
            continue
        if keyword(call.node, "preprocess_logits_for_metrics") is not None or "predict_with_generate" in module.text:
            continue
        name = text_of(given)
        function = next((item for item in module.functions if item.name == name), None)
        if function is not None and _REDUCES.search(module.text_of(function)):
            yield Hit(call.node, "the logits of the whole evaluation set are kept for their argmax", "evaluate")


def _gathered(module: Module) -> Iterator[Hit]:
    for assign in module.assigns:
        if assign.how != "append" or not assign.context.hot or "logits" not in text_of(assign.expression, 200):
            continue
        if _REDUCES.search(text_of(assign.expression, 200)) or not isinstance(assign.node, ast.Call):
            continue
        reads = [
            item
            for item in module.reads(assign.target, module.scope(assign.node))
            if module.around(item, ast.Call) is not assign.node
        ]
        if reads and all(_is_reduced(module, item) for item in reads):
            yield Hit(assign.node, f"whole logits are kept for their argmax: {text_of(assign.node)}", "append")


def _is_reduced(module: Module, node: ast.Name) -> bool:
    """Return whether a list is put together and nothing but its argmax is taken."""
    joined = module.parents.get(node)
    if not isinstance(joined, ast.Call) or not module.name_of(joined.func).endswith((".cat", ".concatenate", ".stack")):
        return False
    return all("argmax" in text_of(module.around(use, ast.stmt) or use, 400) for use in module.uses(joined))
