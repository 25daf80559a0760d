"""Ranks of one job run different programs: different operators, input types, versions or devices.

Looks like: in the recordings of all ranks of a data-parallel job, calls in every step that the majority of ranks does
    not make, at least 5 % of a rank's computation or of its kinds of calls; products in another type; or another
    version of PyTorch, CUDA, driver or NCCL, or another device, on fewer than half of the ranks.
Slow because: the rank with the slower program is waited for; results may differ, too.
Cost: none by itself: where the others wait for such a rank, COM036 has the time and this is its reason.
Fix: start all ranks from one image with one configuration; look for branches on the rank.
Leave it when: the ranks have different parts by design: stages of a pipeline, experts, tables, roles of their own.
Source: PyTorch documentation, "Reproducibility".
"""

from torchtriage.diagnose.patterns.base import Fix, Pattern

PATTERN = Pattern.of(__name__, "COM066", "Ranks run different programs", order=424, needs="job")
FIX = Fix(
    text="Start all ranks from one image and one configuration, and look for branches on the rank.",
    code="""versions = [None] * world_size
torch.distributed.all_gather_object(versions, (torch.__version__, torch.version.cuda))
assert len(set(versions)) == 1, versions""",
    link="https://docs.pytorch.org/docs/stable/notes/randomness.html",
)
