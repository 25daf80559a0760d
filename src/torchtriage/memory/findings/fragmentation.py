"""Much of what is reserved could not be used by any tensor when most was reserved.

Looks like: at the moment with the most reserved bytes, 256 MiB and a fifth of them are free. Each
    free byte has one cause: waiting for another stream, private pools, cached for other streams or
    the other size class, whole segments, or pieces between tensors in use.
Slow because: the card is full earlier than the tensors are: a smaller batch, or an out-of-memory
    error while memory is free.
Cost: none in time. The bytes are those of the moment, out of what was reserved then.
Fix: let segments grow (``expandable_segments:True``), allocate what stays before what goes, ask for
    fewer different large sizes. Other settings are replayed (MEM050); what that shows goes first.
Leave it when: the program is alone on the card and fits; what is free then serves the next step.
Source: PyTorch documentation, "CUDA semantics", memory management; a tenth of large segments is
    rounding, so less than a fifth is no finding.
"""

from torchtriage.core.finding import Fix
from torchtriage.memory.findings.base import MemoryCode

__all__ = ["CODE", "FIX"]

CODE = MemoryCode(
    code="MEM049",
    name="fragmentation",
    title="Reserved memory that no tensor could use",
    needs="a snapshot with segments",
)
FIX = Fix(
    "Let segments grow instead of leaving gaps between them; allocate what stays before what goes,"
    " and large sizes first",
    "PYTORCH_ALLOC_CONF=expandable_segments:True  # before torch 2.9: PYTORCH_CUDA_…",
    "https://docs.pytorch.org/docs/stable/notes/cuda.html#memory-management",
)
