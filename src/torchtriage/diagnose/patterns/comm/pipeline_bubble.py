"""The stages of a pipeline wait for each other as long as its schedule implies, and that is much.

Looks like: in the recordings of all ranks of a pipeline, whose order of passes is a known schedule (GPipe, 1F1B,
    interleaved 1F1B, zero bubble, one micro-batch after another), the order implies at least 10 % of the step in
    waiting even with equal stages, and the ranks do wait.
Slow because: at both ends of a step the pipeline fills and drains: a rank can do nothing until the stage before it, or
    on the way back the one after, has finished a micro-batch. With p ranks, m micro-batches and v stages on each rank
    that is (p - 1)/(v m + p - 1) of the time; one micro-batch after another leaves it idle for (p - 1)/p however many
    there are.
Cost: modelled by playing the schedule through with the measured times of stages, messages and host: half of the lowest
    and the highest of what twice as many micro-batches (instead of one after another: 1F1B), two stages on each rank,
    and a zero-bubble schedule would save.
Fix: more micro-batches, several stages on each rank (interleaved 1F1B), or a schedule that puts the gradients of the
    weights into the gaps (zero bubble).
Leave it when: micro-batches are so small that half of one no longer fills the device, or there is no memory for more of
    them, or for a second stage on each rank.
Source: Huang et al., "GPipe", NeurIPS 2019; Narayanan et al., "Efficient Large-Scale Language Model Training on GPU
    Clusters Using Megatron-LM", SC 2021; Qi et al., "Zero Bubble Pipeline Parallelism", ICLR 2024.
"""

from torchtriage.diagnose.patterns.base import Fix, Pattern

PATTERN = Pattern.of(
    __name__, "COM062", "Pipeline stages wait because of their schedule", order=421, needs="collectives peers"
)
FIX = Fix(
    text="Cut the batch into more micro-batches, give each rank several stages (interleaved 1F1B), or use a schedule"
    " that fills the gaps with the gradients of the weights.",
    code="""from torch.distributed.pipelining import ScheduleInterleaved1F1B
schedule = ScheduleInterleaved1F1B(stages, n_microbatches=16, loss_fn=loss_fn)
# or ScheduleInterleavedZeroBubble, ScheduleZBVZeroBubble""",
    link="https://docs.pytorch.org/docs/stable/distributed.pipelining.html",
)

ONE_BY_ONE_FIX = Fix(
    text="Let a stage start the next micro-batch while the others process this one: a 1F1B schedule.",
    code="""from torch.distributed.pipelining import Schedule1F1B
schedule = Schedule1F1B(stage, n_microbatches=16, loss_fn=loss_fn)
schedule.step(batch)  # all micro-batches at once, not one call for each""",
    link="https://docs.pytorch.org/docs/stable/distributed.pipelining.html",
)
