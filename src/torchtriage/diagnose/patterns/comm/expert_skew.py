"""One rank's experts get more tokens than those of the other ranks, which wait for it.

Looks like: in the recordings of all ranks, all-to-alls that return what experts computed, before which the rank that
    comes last has put in more elements than the mean of its group and has computed products for longer; the others wait
    for it there for 5 % of the step or more. Which rank it is may change from step to step.
Slow because: a layer of experts is done when its fullest rank is; routers prefer some experts unless held back.
Cost: measured: from the mean to the last start of these all-to-alls. The low end is half of that: no router is
    perfectly even. The high end adds how much faster the all-to-alls of even experts would be. Of several groups of
    experts, which wait at the same time, the one that waits longest counts.
Fix: balance the load: an auxiliary loss or a bias on the router, a capacity limit, copies of hot experts on more ranks,
    or another placement of experts.
Leave it when: the router has just begun to train, or the tokens of this batch are unusual.
Source: Fedus et al., "Switch Transformers", JMLR 2022 (load balancing loss); Wang et al., "Auxiliary-Loss-Free Load
    Balancing Strategy for Mixture-of-Experts", 2024.
"""

from torchtriage.diagnose.patterns.base import Fix, Pattern

PATTERN = Pattern.of(
    __name__, "COM064", "One rank's experts get more tokens, and the other ranks wait", order=422, needs="job"
)
FIX = Fix(
    text="Balance the load of the experts: an auxiliary loss or a bias on the router, a capacity limit, or copies of"
    " hot experts.",
    code="""# DeepSeek-V3: a bias that only chooses, moved against the load after every step
bias += speed * torch.sign(load.mean() - load)
scores = (logits.sigmoid() + bias).topk(k)""",
    link="https://docs.nvidia.com/megatron-core/developer-guide/0.15.0/apidocs/core/core.transformer.moe.moe_utils.html",
)
