"""Nothing lets matrix products use the tensor cores.

Looks like: a training script for CUDA that sets neither ``set_float32_matmul_precision`` nor
    ``allow_tf32``, uses no autocast, and names no half type.
Slow because: full float32 products bypass the tensor cores, at a fraction of their rate.
Fix: ``torch.set_float32_matmul_precision("high")``, or autocast to bfloat16.
Quiet when: any of these is there. A remark only (``--notes``): the source does not show what precision is needed.
Source: PyTorch CUDA semantics, "TensorFloat-32 (TF32) on Ampere (and later) devices".
"""

import re
from collections.abc import Iterator

from torchtriage.diagnose.lint.base import Fix, Hit, Module, Rule

RULE = Rule("KRN022", "matmul-fp32", "kernel", "Matrix products run in fp32 without tensor cores", "note")

FIX = Fix(
    text="Allow TF32, or train in bfloat16 with autocast.",
    code='torch.set_float32_matmul_precision("high")',
    link="https://docs.pytorch.org/docs/stable/notes/cuda.html#tensorfloat-32-tf32-on-ampere-and-later-devices",
)

_SAID = re.compile(
    r"matmul_precision|allow_tf32|autocast|bfloat16|float16|\bhalf\b|mixed_precision"
    r"|precision=|fp32_precision|Accelerator\(|fp16|bf16"
)


def find(module: Module) -> Iterator[Hit]:
    """Yield the first backward pass of a CUDA script that says nothing of precision."""
    for call in module.sent("backward"):
        if call.context.step_loop is not None:
            if "cuda" not in module.text or _SAID.search(module.text):
                return
            yield Hit(call.node, "nothing in this file lets products use the tensor cores")
            return
