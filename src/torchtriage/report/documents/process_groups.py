"""Process groups: what each role costs a step, and what says the role."""

from __future__ import annotations

from collections.abc import Sequence

from torchtriage.core.names import elide, visible
from torchtriage.core.units import format_bytes, format_count, format_ns, format_range, format_share
from torchtriage.diagnose.verdict.result import GroupSummary
from torchtriage.report import blocks as b
from torchtriage.report.documents.bus_bandwidth import format_gbps

N_LINES, N_ROWS = 6, 20
WIDTH = 40
"""Characters of a name."""
WORDS = (
    "Mean of the ranks; where several groups communicate at once, each gets an equal part of the time. Exposed is"
    " communication without computation: waiting for the last rank, and the transfer."
)


def lines(groups: Sequence[GroupSummary], per: str) -> b.Rows:
    """Return a line or two for each role; ``per`` : what the times are given over."""
    texts: list[b.Text] = []
    for group in groups[:N_LINES]:
        reached = f"; {rate(group, brief=True)}" if group.bus_gbps is not None else ""
        texts.append((b.bold(called(group)), f": {parts(group)}{reached}", b.dim(f"; {told(group)}")))
    if texts:
        more = f"; {format_count(len(groups) - N_LINES, 'more row')} in the JSON" if len(groups) > N_LINES else ""
        texts.append(
            b.dim(f"per {per}, mean of the ranks; groups that communicate at once share the time equally{more}")
        )
    return b.Rows(b.labelled("groups", texts), on=b.TERMINAL)


def table(groups: Sequence[GroupSummary], per: str) -> b.Table:
    """Return the same in full."""
    columns = ("group", f"per {per}", "sizes", "overlapped", "exposed", "waiting", "transfer", "bus", "role from")
    rows = [
        (
            called(group),
            f"{group.n_per_step:.3g}",
            sizes(group),
            *map(format_ns, (group.overlapped_ns, group.exposed_ns)),
            *_split(group),
            rate(group),
            f"{group.how}; {group.layout} ranks" if group.layout == "adjacent" else group.how,
        )
        for group in groups
    ]
    return b.Table(columns, rows, align="lrrrrrrrl", limit=N_ROWS, on=b.MARKDOWN)


def called(group: GroupSummary) -> str:
    """Return how many groups of which role and size: ``TP: 128 groups of 8 ranks, mesh_tp``."""
    n, most = group.n_groups, group.most_ranks
    ranks = format_range(f"{group.least_ranks:,}", f"{most:,}", from_zero=False)
    members = f" of {ranks} rank{'s' * (most != 1)}" if most else ""
    name = f", {elide(visible(group.name), WIDTH)}" if group.name else ""
    return f"{group.role}, {format_count(n, 'group')}{members}{name}"


def parts(group: GroupSummary) -> str:
    """Return the time of a group: beside computation, and exposed with its parts."""
    waiting, transfer = _split(group)
    split = [f"{time} {word}" for time, word in ((waiting, "waiting"), (transfer, "transfer")) if time]
    if split and group.unsplit_ns:
        split.append(f"{format_ns(group.unsplit_ns)} not split")
    detail = f" ({', '.join(split)})" if split else ""
    spread = ""
    if group.n_groups > 1 and group.most_exposed_ns > 1.1 * group.least_exposed_ns:
        reach = format_range(format_ns(group.least_exposed_ns), format_ns(group.most_exposed_ns), from_zero=False)
        spread = f", {reach} by group"
    return f"{format_ns(group.overlapped_ns)} overlapped, {format_ns(group.exposed_ns)} exposed{detail}{spread}"


def rate(group: GroupSummary, *, brief: bool = False) -> str:
    """Return the bus bandwidth of the transfers, and its share of the link's peak or why there is none."""
    if group.bus_gbps is None:
        return ""
    at_least = "at least " if group.n_missing else ""
    reached = f"{at_least}{format_gbps(group.bus_gbps)} on the bus"
    if group.of_link is not None and group.link_gbps is not None:
        return f"{reached}, {format_share(group.of_link)} of {group.link} ({format_gbps(group.link_gbps)})"
    return f"{reached} ({group.link_how.partition(': ')[0] if brief else group.link_how})"


def sizes(group: GroupSummary) -> str:
    """Return how large its messages are: ``median 64.0 MiB, largest 96.0 MiB, 3.6 % below 256 KiB``."""
    small = f", {format_share(group.small_share)} below 256 KiB" if group.small_share else ""
    return f"{_median(group)}{small}"


def told(group: GroupSummary) -> str:
    """Return in a word what says the role, and how much each rank exchanges."""
    how = f"role by {group.told_by}, " if group.told_by else ""
    median = f", {_median(group)}" if group.median_bytes is not None else ""
    return f"{how}{group.n_per_step:.3g} message{'s' * (group.n_per_step != 1)}{median}"


def _median(group: GroupSummary) -> str:
    """Return the median size, and the largest where it is another; empty where no size is known."""
    if group.median_bytes is None or group.largest_bytes is None:
        return ""
    largest = f", largest {format_bytes(group.largest_bytes)}" if group.largest_bytes != group.median_bytes else ""
    return f"median {format_bytes(group.median_bytes)}{largest}"


def _split(group: GroupSummary) -> tuple[str, str]:
    """Return waiting and transfer, empty where nothing was matched with other ranks."""
    if not group.waiting_ns + group.transfer_ns:
        return "", ""
    # a rank without a recording may be the last
    at_least = "at least " if group.n_missing else ""
    return f"{at_least}{format_ns(group.waiting_ns)}", format_ns(group.transfer_ns)
