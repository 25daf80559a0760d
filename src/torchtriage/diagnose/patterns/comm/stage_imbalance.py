"""One stage of a pipeline takes longer than the others, which wait for it at every micro-batch.

Looks like: in the recordings of all ranks of a pipeline, the passes of one rank take at least 10 % longer than the mean
    of all ranks, and the same order with equal stages would make the step at least 5 % shorter.
Slow because: a pipeline runs at the pace of its longest stage: all others stand idle for the difference, micro-batch by
    micro-batch.
Cost: modelled by playing the recorded order through with the measured times of the stages and with equal ones, and 5 %
    for what that is off. The low end is half of it, because layers move whole.
Fix: move layers from the longest stage to the others; count the embedding, the head and the loss as the layers they
    weigh.
Leave it when: the layers that would have to move are larger than the difference.
Source: Narayanan et al., "PipeDream: Generalized Pipeline Parallelism for DNN Training", SOSP 2019, section 3.1.
"""

from torchtriage.diagnose.patterns.base import Fix, Pattern

PATTERN = Pattern.of(
    __name__, "COM063", "One pipeline stage takes longer than the others", order=422, needs="collectives peers"
)
FIX = Fix(
    text="Move layers from the longest stage to the others; if it has no more layers than they do, see what else its"
    " device or its host does.",
    code="""# split where the measured time is equal, not the number of layers
split_spec = {"layers.7": SplitPoint.BEGINNING, "layers.15": SplitPoint.BEGINNING}
pipe = pipeline(model, mb_args=(x,), split_spec=split_spec)""",
    link="https://docs.pytorch.org/docs/stable/distributed.pipelining.html",
)
