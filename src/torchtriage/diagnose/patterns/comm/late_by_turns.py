"""Batches of unequal size: in each step a different rank has the most to do, and the others wait for it.

Looks like: in the recordings of all ranks no rank is late throughout, but the inputs of the operators differ in size
    between the ranks of a step by 10 % and more, the rank with the largest reaches the collectives last in most steps,
    and the others wait for 5 % of the step.
Slow because: a step takes as long as its fullest rank; samples distributed by number differ in length.
Cost: measured: the last rank's own time less the mean of all, no more than ranks wait; at the low end four fifths of
    what sizes explain of it, as whole samples are never shared out evenly.
Fix: distribute by length: sort each global batch and divide it by tokens, or fill batches up to a number of tokens.
Leave it when: the order of samples must not change, or lengths are only known after they are read.
Source: Ott et al., "fairseq", 2019 (batches by number of tokens); Krell et al., "Efficient Sequence Packing", 2021.
"""

from torchtriage.diagnose.patterns.base import Fix, Pattern

PATTERN = Pattern.of(
    __name__, "COM069", "Ranks take turns being late because their batches differ", order=426, needs="job"
)
FIX = Fix(
    text="Split each global batch by length, not by sample count, so that all ranks get about the same number of"
    " tokens.",
    code="""order = sorted(range(len(lengths)), key=lengths.__getitem__, reverse=True)
hands, loads = [[] for _ in range(world_size)], [0] * world_size
for sample in order:  # longest first, each to the rank with the least
    least = loads.index(min(loads))
    hands[least].append(sample)
    loads[least] += lengths[sample]
mine = hands[rank]""",
    link="https://docs.pytorch.org/docs/stable/data.html#torch.utils.data.Sampler",
)
