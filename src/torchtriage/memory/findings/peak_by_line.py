"""Who held the memory at the peak, by line of your code. Reported only where it cannot be determined.

Looks like: a table of lines, modules, phases and purposes that adds up to the allocated bytes of
    the highest moment. Without stacks, or with the peak before the recording, it is not checked.
Slow because: it is not slow; what does not fit at the peak does not run.
Cost: none in time; every share is of the bytes allocated at the peak.
Fix: record the history with stacks, before the model is built.
Leave it when: the phases and purposes, which need less, already tell enough.
Source: PyTorch documentation, "Understanding CUDA Memory Usage".
"""

from torchtriage.core.finding import Fix
from torchtriage.memory.findings.base import MemoryCode

CODE = MemoryCode(
    code="MEM052",
    name="peak-by-line",
    title="The peak cannot be attributed to lines",
    needs="a snapshot with a history and stacks, or a trace with profile_memory and with_stack",
)
FIX = Fix(
    "Record the history with stacks, before the model is built.",
    "torch.cuda.memory._record_memory_history(max_entries=1_000_000, context='all')",
    "https://docs.pytorch.org/docs/stable/torch_cuda_memory.html",
)
