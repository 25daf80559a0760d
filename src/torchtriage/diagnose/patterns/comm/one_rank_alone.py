"""One rank saves a checkpoint or evaluates while the others wait for it.

Looks like: in the recordings of all ranks, steps in which the others wait for one rank, for 5 % of a step or more on
    average over all recorded steps, and it spends that time in calls or ranges that save or evaluate, or runs many more
    operators of the forward pass with no more of the backward pass. These may be few steps, left out of the steady
    ones.
Slow because: the next collective starts when the last rank has arrived, so all devices stand still meanwhile.
Cost: measured: the time for which the others wait for it in these steps, spread over all recorded steps; 40 % of it at
    the low end, since the work has to be done somewhere.
Fix: save from all ranks at once, each its part, or in the background; evaluate on all ranks with a shard for each.
Leave it when: it is rare: the recording shows few steps, and the share refers to those.
Source: PyTorch documentation, torch.distributed.checkpoint (async_save).
"""

from torchtriage.diagnose.patterns.base import Fix, Pattern

PATTERN = Pattern.of(__name__, "COM065", "One rank does work that the others wait for", order=423, needs="job")
FIX = Fix(
    text="Let every rank save its own shard, in the background, and evaluate its own shard.",
    code="""import torch.distributed.checkpoint as dcp
# on every rank
future = dcp.async_save({"model": model.state_dict()}, checkpoint_id=path)
# evaluation: DistributedSampler(validation_set), then all_reduce the sums""",
    link="https://docs.pytorch.org/docs/stable/distributed.checkpoint.html",
)
