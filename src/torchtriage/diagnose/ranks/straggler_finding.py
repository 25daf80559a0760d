"""The finding of a rank that makes the others wait: its cost, why it is late, what would help."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from torchtriage.core.finding import Certainty, Cost, Finding, Fix, Place, RankSpread
from torchtriage.core.names import visible
from torchtriage.core.stats.median import median_interval
from torchtriage.core.trace.frames import parse_frame
from torchtriage.core.units import format_ns, ms
from torchtriage.diagnose.ranks.joint_cost import LATE_AGAIN
from torchtriage.diagnose.ranks.merge import STRAGGLER
from torchtriage.diagnose.ranks.rank_record import RankRecord
from torchtriage.diagnose.ranks.straggler import MOST, Straggler, StragglerCause, Waiting
from torchtriage.diagnose.verdict.verdict import of_window, severity_of

HOST_ACTIVITIES = ("op", "python", "gc")
_LINK = "https://docs.pytorch.org/docs/stable/notes/ddp.html"


def straggler_finding(
    ranks: Sequence[RankRecord], numbers: Sequence[int], late: Straggler, waits: Waiting, *, has_steps: bool = True
) -> Finding:
    """Return what the late rank costs the job, why it is late, and what would help.

    ``has_steps`` : else each rank's window stands for one.
    """
    low_ns, middle_ns, high_ns = median_interval(late.gain_ns)
    n = len(late.gain_ns)
    rank = numbers[late.position]
    cause = late.cause
    members = len(late.group.members)
    method = "time for which every other rank waits for this one alone, median over steps"
    if late.off_ns is None:
        # messages that only the late rank has work beside stand alone on the others because it is late
        beyond_ns = median_interval(late.beyond_ns)[2]
        if beyond_ns > high_ns:
            high_ns = beyond_ns
            method += "; high end: its own time beyond all others'"
    else:
        low_ns, high_ns = max(low_ns - late.off_ns[0], 0.0), high_ns + late.off_ns[1]
        method = "all ranks replayed together without waiting for this one, median over steps"
    if cause is not None and cause.excess_ns < low_ns:
        low_ns = cause.excess_ns * (1 - LATE_AGAIN)
        method += "; low end: what the cause explains"
    stalls = cause is not None and cause.kind == "stall"
    if cause is not None and cause.activity in ("op", "device") and cause.phase != "loader" and not stalls:
        # work that is shared out again comes back in part
        low_ns *= (members - 1) / members
        method += "; low end: the work is shared out, not removed"
    record = ranks[late.position]
    moment = cause.moment if cause is not None else None
    host = cause is not None and cause.phase != "loader" and cause.activity in HOST_ACTIVITIES
    # a stretch without rows is no longer under the profiler, unless stacks are recorded: then its calls are
    if host and not (stalls and moment is not None and not moment.frame):
        low_ns /= record.inflation
        method += "; low end divided by the profiler's inflation of host time"
    hint = ""
    if n < 2 or (n < 3 and not (cause is not None and cause.everywhere and cause.excess_ns >= MOST * middle_ns)):
        hint = f"only {n} step{'s' * (n > 1)} to compare with" if has_steps else "no steps to compare"
    elif not late.reaches_all:
        hint = "its groups do not include all ranks, and waiting passed on between groups is not"
        hint += " followed"
        low_ns = 0.0
    elif any(rank.n_point_to_point for rank in ranks):
        hint = "ranks also send to each other (pipeline stages): part of the waiting is the schedule"
        low_ns = 0.0
    step_ns = waits.step_ns
    high_ns, low_ns = min(high_ns, step_ns), min(low_ns, high_ns, step_ns)
    mean_wait_ns = float(np.mean(late.mean_wait_ns))
    cost = Cost.of(
        *(ns / 1e6 for ns in (low_ns, high_ns, step_ns, mean_wait_ns)),
        basis="bounded" if hint else "measured" if late.off_ns is None else "modelled",
        method=method,
        grade="C" if hint else "A" if late.off_ns is None else "B",
        per="step" if has_steps else "window",
    )
    group = f"process group {visible(late.group.group.name)}" if late.n_peers < members else "its process groups"
    of = "" if late.reaches_all else f" of {group}"
    whom = f"the other {late.n_peers} ranks{of} wait" if late.n_peers > 1 else f"the other rank{of} waits"
    steps = f" in {late.n_late} of {n} steady step{'s' * (n > 1)}" * has_steps
    message = (
        f"rank {rank} comes last to the collectives with the longest waits{steps}, and {whom}:"
        f" {format_ns(mean_wait_ns)} of {format_ns(step_ns)} {'per step on average' if has_steps else 'in the window'};"
        f" {_why(cause, device=record.device)}"
    )
    if hint:
        message += f"; {hint}"
    frame = parse_frame(moment.frame) if moment and moment.frame else None
    certainty: Certainty = "hint" if hint else "likely"
    evidence = {
        "late_rank": rank,
        "n_late_steps": late.n_late,
        "n_judged_steps": n,
        "share_of_waiting": round(late.blame_share, 6),
        "saved_ms_per_step": ms(middle_ns),
        "mean_wait_ms_per_step": ms(mean_wait_ns),
        **(
            {
                "cause": f"{cause.phase} {cause.activity}".strip(),
                "cause_kind": cause.kind,
                "excess_ms_per_step": ms(cause.excess_ns),
                "n_more_ops_per_step": cause.n_more_ops,
                "pace": round(cause.pace, 4),
            }
            if cause
            else {"cause": "not recorded"}
        ),
        **({"after": moment.after, "before": moment.before} if moment and (moment.after or moment.before) else {}),
        "n_matched_collectives": waits.n_judged,
    }
    return Finding(
        code=STRAGGLER,
        name="rank-straggler",
        family="comm",
        title=f"Rank {rank} makes the others wait",
        # how much is at stake is measured; how certain the reading of it is, is said by itself
        severity=severity_of(cost, "likely"),
        certainty=certainty,
        message=message,
        place=Place(
            lane=f"rank {rank}",
            ops=moment.within if moment and stalls else (),
            frame=frame,
            stack=(frame,) if frame else (),
        ),
        cost=cost,
        evidence=evidence if has_steps else of_window(evidence),
        fix=_fix(cause, device=record.device),
        n_events=waits.n_judged,
        ranks=RankSpread(1, len(numbers), ms(middle_ns), ms(middle_ns), (rank,)),
    )


def in_doubt(waited: Finding) -> Finding:
    """Return what ranks wait for as it is where some were left out: with a later one among them it saves 0."""
    # what one rank alone guesses names none
    if waited.cost is None or (waited.code == STRAGGLER and "late_rank" not in waited.evidence):
        return waited
    cost = replace(waited.cost.saving(0.0, waited.cost.high_ms), basis="bounded", grade="C")
    message = (
        f"{waited.message}; ranks are missing or were left out: the rank that makes the others wait may be among them"
    )
    return replace(waited, message=message, cost=cost, severity=severity_of(cost, "hint"), certainty="hint")


def _why(cause: StragglerCause | None, *, device: bool) -> str:
    if cause is None:
        return "what takes it longer was not recorded"
    time = format_ns(cause.excess_ns)
    if cause.phase == "loader":
        return f"before that it spends {time} more than they do in its data loader"
    if cause.activity == "gc":
        return f"before that its garbage collector runs {time} longer than theirs"
    where = {
        "forward": "in the forward pass",
        "backward": "in the backward pass",
        "optimizer": "in the optimizer",
        "between": "between the phases of the step",
    }.get(cause.phase, "")
    if cause.kind == "stall" and cause.activity == "op":
        call = visible(cause.moment.within[-1]) if cause.moment else ""
        return f"before that {call} {where} takes {time} longer than theirs, in one stretch"
    if cause.kind == "stall":
        where += _at(cause)
    if cause.activity == "sync":
        return f"before that it waits {time} longer than they do in host syncs {where}"
    if cause.activity == "python":
        return f"before that it spends {time} more than they do in Python {where}"
    computes = cause.activity == "device"
    what = "kernels" if computes else "operators"
    how = f"each {cause.pace:.2f} times as long at the median"
    if cause.kind == "work":
        how = f"with {round(cause.n_more_ops):,} more {what} per step"
    elif computes or not device:
        # sizes change what a kernel takes, and an operator where it computes on the host
        how += f": larger inputs, or a slower {'device' if computes else 'host'}"
    else:
        how += f": a slower host, where kernels take {cause.device_pace:.2f} times as long as theirs"
    if computes:
        return f"before that its device computes {time} longer than theirs, {how}"
    if device:
        return f"before that its device stands idle {time} longer than theirs for operators {where}, {how}"
    return f"before that its operators {where} take {time} longer than theirs, {how}"


def _at(cause: StragglerCause) -> str:
    """Return where a stall is: the range, and the calls on both sides of it."""
    moment = cause.moment
    assert moment is not None
    parts = [f"inside {visible(moment.within[-1])}"] if moment.within else []
    sides = [f"{word} {visible(name)}" for word, name in (("after", moment.after), ("before", moment.before)) if name]
    parts += [" and ".join(sides)] if sides else []
    return "".join(f", {part}" for part in parts)


def _fix(cause: StragglerCause | None, *, device: bool) -> Fix:
    if cause is None:
        return Fix("Record the ranks with stacks and shapes: the report then names what takes this one longer.")
    if cause.phase == "loader":
        return Fix(
            "Give every rank the same loader: equal shards, the same number of workers, equally close storage.",
            "sampler = DistributedSampler(dataset)\n"
            "loader = DataLoader(\n"
            "    dataset, batch_size, sampler=sampler, num_workers=4, persistent_workers=True\n"
            ")",
            "https://docs.pytorch.org/docs/stable/data.html",
        )
    if cause.activity == "gc":
        return Fix(
            "Collect garbage on all ranks at the same step, or not at all in the loop.",
            "gc.disable()\nif step % 500 == 0:\n    gc.collect()  # on every rank",
            "https://docs.python.org/3/library/gc.html#gc.disable",
        )
    if cause.kind == "stall" or cause.activity == "sync":
        return Fix(
            "Move what only this rank does there (logging, checkpoints, waiting for a lock or a server) out of the"
            " step, or do it rarely, or in a separate thread.",
            "if rank == 0 and step % 100 == 0:\n    writer.submit(save, snapshot)  # a thread; the step goes on",
            _LINK,
        )
    if cause.kind == "slower" and device and cause.activity != "device":
        return Fix(
            "Give its process cores of its own, close to its device, and check what else runs on them and at which"
            " clock: the same calls take longer on this host.",
            "torchrun --numa-binding=node --nproc-per-node=8 train.py  # torch 2.9 or newer; else numactl",
            "https://docs.pytorch.org/docs/stable/elastic/run.html",
        )
    text = "Share the work evenly: batches by tokens or shapes rather than by samples, experts and tables by load"
    if cause.kind == "slower":
        text += f"; where the sizes are equal, compare the clocks of its {'device' if device else 'processor'}"
    return Fix(f"{text}.", "batches = sorted(batches, key=n_tokens)\nmine = batches[rank::world_size]", _LINK)


def with_reasons(findings: Sequence[Finding]) -> list[Finding]:
    """Return the findings with those that may be why a rank is late taken into its own: their time is its lateness."""
    late = next((finding for finding in findings if finding.code == STRAGGLER), None)
    reasons = [finding for finding in findings if late is not None and _explains(finding, late)]
    if late is None or not reasons:
        return list(findings)
    first = max(reasons, key=lambda finding: finding.cost.high_ms if finding.cost else 0.0)
    explained = replace(
        late,
        message=f"{late.message}; only on this rank: {first.message} ({first.code})",
        # what only one rank's host or loader does is no fault of the program, which theirs advise on
        fix=late.fix if first.family in ("host", "data") else first.fix,
        also_explains=tuple(dict.fromkeys((*late.also_explains, *(finding.code for finding in reasons)))),
    )
    return [explained if finding is late else finding for finding in findings if finding not in reasons]


def _explains(one: Finding, late: Finding) -> bool:
    """Return whether a finding of the late rank alone is of the kind of its cause."""
    if one.ranks is None or late.ranks is None or one.ranks.ranks != late.ranks.ranks:
        return False
    phase, _, activity = str(late.evidence.get("cause", "")).rpartition(" ")
    families = {
        "loader": ("data",),
        "gc": ("host",),
        "sync": ("sync", "copy"),
        "python": ("host", "sync", "data"),
        "device": ("kernel", "copy"),
        "op": ("launch", "kernel"),
    }
    return one.family in families.get("loader" if phase == "loader" else activity, ())
