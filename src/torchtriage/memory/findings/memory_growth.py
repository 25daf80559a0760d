"""Something grows from step to step and is never given back, and a name or a graph holds it.

Looks like: while the program runs (``tt.memory.watch``, ``torchtriage run --memory``), a list,
    dict, cache, hook, graph or tensor that has grown at every look for 150 steps, or memory that
    climbs with no name found; in a snapshot, a stack of which nine steps in ten leave something.
Slow because: it is not slow, until memory runs out; kept graphs also make the last backward longer.
Cost: none in time. Growth is in bytes per step, counted from the step at which it began.
Fix: detach what is kept, or keep the number; bound caches; remove hooks; clear lists.
Leave it when: a buffer of known size is being filled; raise ``patience_steps`` there.
Source: ``docs/leaks.md``, with how often it is right; PyTorch documentation, FAQ.
"""

from torchtriage.core.finding import Fix
from torchtriage.memory.findings.base import MemoryCode

CODE = MemoryCode(
    code="MEM029",
    name="memory-growth",
    title="Memory grows from step to step",
    needs="a watch of some 200 steps, or a snapshot with a history of seven similar steps",
)
FIX = Fix(
    "Keep the number, not the tensor with its graph.",
    "total += loss.detach()   # or loss.item()",
    "https://docs.pytorch.org/docs/stable/notes/faq.html#my-model-reports-cuda-runtime-error-2-out-of-memory",
)
