"""Ranks exchange a few numbers between micro-batches, and all wait there for whoever is last.

Looks like: in the recordings of all ranks no rank is late throughout, but between micro-batches, or between forward and
    backward pass, they exchange a loss, a count or a metric (512 bytes and less) at least twice in a step, arrive there
    at different times, and would gain 5 % of the step if none of them waited there.
Slow because: an exchange of next to nothing still holds every rank until the last has arrived. Micro-batches differ in
    length, and over a step the differences even out; at each exchange the ranks wait for the longest of them instead.
Cost: measured: the ranks' recorded arrivals are replayed without waiting at these exchanges, with all other collectives
    as they are; 80 % of what the job gains, at the high end 125 % of that and of the transfer. Of several exchanges in
    a row only the first counts: the others take their latency (COM037).
Fix: sum the numbers up on each rank, and exchange them once per step or when the log is written.
Leave it when: the step needs the result at once, such as the number of all tokens that a loss is divided by: then
    exchange that of all micro-batches before the first, or start it with ``async_op=True``.
Source: PyTorch documentation, distributed communication; measured: 36 % of the step of four ranks that exchanged the
    loss after each of six micro-batches.
"""

from torchtriage.diagnose.patterns.base import Fix, Pattern

PATTERN = Pattern.of(
    __name__, "COM101", "Ranks wait for each other at exchanges of a few numbers", order=427, needs="job"
)
FIX = Fix(
    text="Accumulate the numbers on each rank, and exchange them once per step or once per log line.",
    code="""total = torch.zeros((), device=device)
for batch in micro_batches:
    loss = loss_fn(model(batch)) / len(micro_batches)
    loss.backward()
    total += loss.detach()  # stays on this rank
optimizer.step()
if step % 100 == 0:
    torch.distributed.all_reduce(total)""",
    link="https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.all_reduce",
)
