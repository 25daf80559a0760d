"""One process group sends more slowly than its equals.

Looks like: in the recordings of a job's ranks, the messages of one process group take 1.25 times as long as messages of
    equal operation and size in the groups that play the same part: as many members, as far apart, on as many hosts. The
    transfer is measured, from the last rank's start to the end, so that no rank's lateness counts; this must hold for
    four of five messages.
Slow because: the ranks of the slow group come late to what they share with the others, and the whole job runs at the
    pace of its slowest link.
Cost: what each message takes beyond the median of the equal groups, as far as nothing is computed beside it on any of
    its ranks. Low counts from the slowest equal group that is not slow, and takes off what all of the group's ranks
    wait for others anyway. Equal groups that are slow at once are one finding, with the cost of the slowest.
Fix: look at the link: its error counters, its speed, the route.
Leave it when: the group's ranks are connected differently on purpose.
Source: NCCL tests, bus bandwidth; NCCL documentation, troubleshooting.
"""

from torchtriage.diagnose.patterns.base import Fix, Pattern

PATTERN = Pattern.of(__name__, "COM068", "One group's link is slower than its peers'", order=406, needs="job")
FIX = Fix(
    text="Measure the links of these ranks alone, and compare the counters of their adapters with those of others: a"
    " cable, a port that came up at a lower speed, or a route over the wrong adapter.",
    code="""# NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=GRAPH,NET says which way NCCL goes;
# nvidia-smi nvlink -s, ibstat and perfquery -x give speeds and errors
sent = torch.ones(64 << 20, device="cuda")
for group in groups:  # the one of the finding, and its equals, one at a time
    begin = time.perf_counter()
    for _ in range(20):
        torch.distributed.all_reduce(sent, group=group)
    torch.cuda.synchronize()
    print(group.group_name, time.perf_counter() - begin)""",
    link="https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html",
)
