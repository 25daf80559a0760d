"""The allocator's cache is emptied in every step.

Looks like: ``torch.cuda.empty_cache()`` in a loop of steps or in a step function.
Slow because: freeing waits for the device, and the next step must ask the driver for the same
    memory again.
Fix: delete the call; find the real peak instead.
Quiet when: it runs once per epoch or phase, behind ``if step % n``, or in an ``except``.
Source: PyTorch CUDA semantics, "Memory management".
"""

from collections.abc import Iterator

from torchtriage.diagnose.lint.base import Fix, Hit, Module, Rule

RULE = Rule("MEM028", "empty-cache-in-loop", "alloc", "The allocator's cache is emptied inside the loop", "high")

FIX = Fix(
    text="Delete the call: it frees nothing that PyTorch could not reuse.",
    code="""for batch in loader:
    train(batch)
torch.cuda.empty_cache()  # after the phase, if at all""",
    link="https://docs.pytorch.org/docs/stable/notes/cuda.html#memory-management",
)

_SPACES = ("cuda", "xpu", "mps", "npu", "mlu", "musa", "cuda.memory", "accelerator")


def find(module: Module) -> Iterator[Hit]:
    """Yield empty_cache() in each step."""
    named = module.called(*(f"torch.{space}.empty_cache" for space in _SPACES), "empty_cache")
    for call in named:
        if call.context.hot:
            yield Hit(call.node, "the cache is emptied in every step", "empty_cache")
