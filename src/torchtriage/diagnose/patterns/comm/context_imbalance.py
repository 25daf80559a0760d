"""Causal attention is split over ranks in contiguous chunks of the sequence, so the last ranks have most of the work.

Looks like: in the recordings of all ranks, attention takes longer from rank to rank of a group while everything else
    takes as long on all of them (within 10 %), and the ranks with little of it wait: the longest is 5 % of the step
    above the mean.
Slow because: under a causal mask the n-th chunk of the sequence attends to n chunks; the ring runs at the pace of its
    fullest rank.
Cost: modelled: attention of the fullest rank less the mean, no more than the others wait; half of it at the low end.
Fix: give each rank one chunk from the front and one from the back (zigzag), or stripes.
Leave it when: attention is a small part of the step, or the mask is not causal.
Source: Brandon et al., "Striped Attention", 2023; PyTorch documentation, context_parallel (load balancing is on by
    default).
"""

from torchtriage.diagnose.patterns.base import Fix, Pattern

PATTERN = Pattern.of(__name__, "COM067", "Causal attention is split unevenly over the ranks", order=425, needs="job")
FIX = Fix(
    text="Give each rank one chunk from the front and one from the back of the sequence (zigzag), or stripes.",
    code="""# torch.distributed.tensor.experimental balances by itself:
with context_parallel(mesh, buffers=(x, y), buffer_seq_dims=(1, 1)):
    ...""",
    link="https://docs.pytorch.org/tutorials/unstable/context_parallel.html",
)
