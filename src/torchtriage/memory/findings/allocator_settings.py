"""Under another allocator setting the same requests would reserve less.

Looks like: the recorded allocations, replayed in a simulated allocator, reserve at least 3 % and
    40 MiB less at the peak under another setting, or have room where the recording ran out, for the request that
    failed and one more of its size.
Slow because: it is not slow; less fits on the card than could.
Cost: the saving is in bytes of the reserved peak, beside the calls to the driver that the setting adds. The replay must
    first reproduce the recorded reserved curve within 2 %; otherwise nothing is reported.
Fix: set ``PYTORCH_ALLOC_CONF`` in the environment before the process starts.
Leave it when: memory is no limit, or steps differ much from those recorded.
Source: the allocator's own rules, replayed; see ``docs/allocator.md`` for how near it comes.
"""

from torchtriage.core.finding import Fix
from torchtriage.memory.findings.base import MemoryCode

CODE = MemoryCode(
    code="MEM050",
    name="allocator-settings",
    title="Another allocator setting reserves less",
    needs="a snapshot with a history that replays as recorded",
)
FIX = Fix(
    "Start the process with the setting that the replay found best.",
    "PYTORCH_ALLOC_CONF=expandable_segments:True  # for example",
    "https://docs.pytorch.org/docs/stable/notes/cuda.html#optimizing-memory-usage-with-pytorch-alloc-conf",
)
