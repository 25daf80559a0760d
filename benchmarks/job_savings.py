"""What a job of several ranks is promised, against what it saves: emulated jobs with one fault, run again without it.

    python benchmarks/job_savings.py [--half dev|held|both] [--seeds N] [--worst N]

Every rank runs the same random program on an emulated device of its own (``emulator.py``), and its collectives meet
those of the others: they end everywhere one transfer after the last has come. A fault is put into some or all ranks,
the recordings are analysed as a job, and the job runs again without the fault on those ranks. Nothing of the replay is
used. A case belongs to one of two halves by a hash of its name; rules are chosen on ``dev`` only.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from multiprocessing import Pool
from pathlib import Path

import numpy as np
from emulator import (
    COMM,
    COMPUTE,
    Clock,
    Copy,
    Fetch,
    Host,
    Instruction,
    Launch,
    Process,
    Program,
    Run,
    Sync,
    VirtualClock,
)
from random_programs import fixes, random_program

import torchtriage as tt
from torchtriage.core.finding import Cost
from torchtriage.core.trace import Trace
from torchtriage.diagnose.calibration import margins, step_noise, widened
from torchtriage.diagnose.ranks.job_detection import detect_jobs
from torchtriage.diagnose.ranks.joint_cost import interval_ns
from torchtriage.diagnose.ranks.joint_savings import Fixed, JointSavings
from torchtriage.diagnose.ranks.match import match
from torchtriage.diagnose.ranks.rank_record import build_record
from torchtriage.diagnose.ranks.rank_skeleton import skeleton_of
from torchtriage.diagnose.ranks.straggler import waiting
from torchtriage.diagnose.replay import Edit, model
from torchtriage.diagnose.verdict.verdict import diagnose

GROUP = "0"
SMALL = 0.01
"""Of the step: smaller promises are not printed, and smaller savings are not told from none."""


class Meetings:
    """Where the ranks of a job meet: the n-th collective of each is the same."""

    def __init__(self, n_ranks: int, seed: int) -> None:
        self.n_ranks, self.seed = n_ranks, seed
        self.arrived: dict[int, int] = {}

    def transfer_ns(self, number: int, ns: int) -> int:
        """Return how long the transfer takes on all ranks."""
        return round(ns * (1 + 0.02 * random.Random(f"{self.seed} transfer {number}").gauss(0, 1)))


class RankRun(Run):
    """One rank: as the emulator runs it, but for its collectives."""

    def __init__(self, program: Program, clock: Clock, meetings: Meetings, rank: int) -> None:
        self.meetings, self.rank, self.n_met = meetings, rank, 0
        super().__init__(program, clock, seed=meetings.seed * 100 + rank, starts=False)

    def hold(self, name: str, ns: int) -> Process:
        """Run a kernel; a collective waits for the other ranks first."""
        if not name.startswith("nccl"):
            yield ns
            return
        number, meetings = self.n_met, self.meetings
        self.n_met += 1
        meetings.arrived[number] = meetings.arrived.get(number, 0) + 1
        yield lambda: meetings.arrived[number] == meetings.n_ranks
        yield meetings.transfer_ns(number, ns)

    def json(self) -> bytes:
        """Return the recording with what a rank of a job is recorded with."""
        whole = json.loads(super().json())
        n_ranks = self.meetings.n_ranks
        ranks = list(range(n_ranks))
        whole["distributedInfo"] = {
            "backend": "nccl",
            "rank": self.rank,
            "world_size": n_ranks,
            "pg_config": [{"pg_name": GROUP, "pg_desc": "default_pg", "ranks": ranks}],
        }
        whole["host_name"] = "host0"
        whole["baseTimeNanoseconds"] = 0
        for event in whole["traceEvents"]:
            if event["name"].startswith("nccl") and event["cat"] == "kernel":
                event["args"] |= {
                    "Collective name": "allreduce",
                    "In msg nelems": 1 << 20,
                    "Out msg nelems": 1 << 20,
                    "dtype": "Float",
                    "Group size": n_ranks,
                    "Process Group Name": GROUP,
                    "Process Group Ranks": str(ranks),
                }
        return json.dumps(whole).encode()


def run_job(programs: Sequence[Program], seed: int) -> list[RankRun]:
    """Run one program on each rank, all at once."""
    clock, meetings = VirtualClock(), Meetings(len(programs), seed)
    ranks = [RankRun(program, clock, meetings, rank) for rank, program in enumerate(programs)]
    clock.run([process for rank in ranks for process in rank.processes()])
    return ranks


def step_ms(ranks: Sequence[RankRun]) -> float:
    """Return what a step takes, device and all."""
    ends = [max(event["ts"] + event["dur"] for event in rank.events) for rank in ranks]
    return float(np.mean(ends)) / 1e3 / ranks[0].program.n_steps


# -- faults ------------------------------------------------------------------------------------

Swap = Callable[[Program, random.Random], Program]


def _inserted(*more: Instruction) -> Swap:
    """Put instructions somewhere into the forward pass."""

    def change(program: Program, draw: random.Random) -> Program:
        places = [at for at, one in enumerate(program.step) if isinstance(one, Launch | Host)]
        at = draw.choice(places)
        return replace(program, step=(*program.step[:at], *more, *program.step[at:]))

    return change


def _step_ns(program: Program) -> int:
    return sum(one.ns for one in program.instructions() if isinstance(one, Launch | Copy | Host | Fetch))


def _sleep(program: Program, draw: random.Random) -> Program:
    ns = round(_step_ns(program) * draw.uniform(0.05, 0.5))
    return _inserted(Host("busy", ns, traced=draw.random() < 0.5))(program, draw)


def _slow_loader(program: Program, draw: random.Random) -> Program:
    ns = round(_step_ns(program) * draw.uniform(0.1, 0.6))
    return replace(program, step=(Fetch(ns), *(one for one in program.step if not isinstance(one, Fetch))))


def _reads(program: Program, draw: random.Random) -> Program:
    for index in range(draw.randint(1, 4)):
        program = _inserted(Copy(f"read_more_{index}", 2_000, "host", True))(program, draw)
    return program


def _waits(program: Program, draw: random.Random) -> Program:
    return _inserted(Sync("wait_more", draw.choice(["stream", "device"])))(program, draw)


def _frees(program: Program, draw: random.Random) -> Program:
    for index in range(draw.randint(1, 5)):
        program = _inserted(Sync(f"free_{index}", "free"))(program, draw)
    return program


def _uploads(program: Program, draw: random.Random) -> Program:
    return _inserted(Copy("upload_more", round(_step_ns(program) * draw.uniform(0.05, 0.3)), "device", True))(
        program, draw
    )


def _small_kernels(program: Program, draw: random.Random) -> Program:
    many = [Launch(f"tiny_{index}", 2_000) for index in range(draw.randint(60, 300))]
    return _inserted(*many)(program, draw)


def _slow_kernels(program: Program, draw: random.Random) -> Program:
    factor = draw.uniform(1.2, 2.5)
    return _paced(program, factor)


def _more_work(program: Program, draw: random.Random) -> Program:
    ns = round(_step_ns(program) * draw.uniform(0.02, 0.1))
    return _inserted(*(Launch(f"extra_{index}", ns) for index in range(5)))(program, draw)


FAULTS: dict[str, tuple[Swap, tuple[str, ...]]] = {
    "sleep": (_sleep, ("HST",)),
    "loader": (_slow_loader, ("DAT",)),
    "reads": (_reads, ("SYN",)),
    "waits": (_waits, ("SYN",)),
    "frees": (_frees, ("MEM", "SYN")),
    "uploads": (_uploads, ("DAT", "COP", "CPY", "SYN")),
    "tiny": (_small_kernels, ("LCH",)),
    "kernels": (_slow_kernels, ()),
    "work": (_more_work, ()),
}
"""Name to what puts it in, and families of codes that its fix is the fix of; COM036 is asked of all of them."""


@dataclass(frozen=True)
class Case:
    """One job with one fault on some of its ranks; savings per step."""

    name: str
    on: str
    code: str
    method: str
    step_ms: float
    true_ms: float
    low_ms: float
    high_ms: float

    @property
    def inside(self) -> bool:
        """Whether the true saving lies in the promised interval, give or take a thousandth of the step."""
        slack = 0.001 * self.step_ms
        return self.low_ms - slack <= self.true_ms <= self.high_ms + slack

    @property
    def width(self) -> float:
        """The interval's width as a share of the step."""
        return (self.high_ms - self.low_ms) / self.step_ms


def half_of(name: str) -> str:
    """Return the half a case belongs to."""
    return ("dev", "held")[zlib.crc32(name.encode()) % 2]


def _plain(one: Instruction) -> Sequence[Instruction]:
    if isinstance(one, Fetch | Sync) or (isinstance(one, Copy) and one.to == "host"):
        return []
    return [replace(one, blocks=False)] if isinstance(one, Copy) else [one]


def base_program(seed: int, *, blocks: bool) -> Program:
    """Return a program that communicates; ``blocks`` : it may read its loss back at the end of each step."""
    draw = random.Random(f"job {seed}")
    while True:
        program = random_program(draw.randrange(1 << 30))
        if not any(isinstance(one, Launch) and one.stream == COMM for one in program.instructions()):
            continue
        # whatever else is found must not be taken for the fault
        program = program.change(_plain)
        if not blocks:
            end: Instruction = Sync("read_last", "last")
        else:
            end = draw.choice([Sync("read_last", "last"), Copy("read_loss", 2_000, "host", True)])
        return replace(program, step=(*program.step, end), n_warm=0, n_steps=8)


def _those(on: str, n_ranks: int, draw: random.Random) -> set[int]:
    n = {"one": 1, "some": max(n_ranks // 2, 1), "all": n_ranks}[on]
    return set(draw.sample(range(n_ranks), n))


def _pinned(one: Instruction) -> Sequence[Instruction]:
    blocking = isinstance(one, Copy) and one.blocks
    return [replace(one, blocks=False, ns=round(one.ns * 0.45))] if blocking else [one]


def _paced(program: Program, pace: float) -> Program:
    return program.change(
        lambda one: (
            [replace(one, ns=round(one.ns * pace))] if isinstance(one, Launch) and one.stream == COMPUTE else [one]
        )
    )


def run_case(name: str) -> list[Case]:
    """Run a job with and without its fault; return what is promised for each finding that is the fault."""
    fault, on, seed = name.split("-")
    draw = random.Random(name)
    base = base_program(int(seed), blocks=fault not in ("reads", "waits", "frees", "uploads"))
    n_ranks = draw.choice([2, 3, 4, 8])
    swap, codes = FAULTS[fault]
    bad = swap(base, random.Random(f"fault {name}"))
    has = _those(on, n_ranks, draw)
    # ranks are never quite alike
    pace = [draw.choice([1.0, 1.0, draw.uniform(1.0, 1.15)]) for _ in range(n_ranks)]

    def run(fixed: Program, pace: Sequence[float], *, broken: bool = False) -> list[RankRun]:
        programs = [bad if broken and rank in has else fixed if rank in has else base for rank in range(n_ranks)]
        return run_job([_paced(program, own) for program, own in zip(programs, pace, strict=True)], int(seed))

    before = run(base, pace, broken=True)
    # an upload is not taken away: from pinned memory it is asynchronous, and about twice as fast
    fixed = bad.change(_pinned)
    after = run(fixed if fault == "uploads" else base, pace)
    true_ms = {"": step_ms(before) - step_ms(after)}
    if on == "one":
        # a late rank is taken for fixed when it is as fast as the others are
        (late,) = has
        usual = float(np.median([own for rank, own in enumerate(pace) if rank != late]))
        level = [usual if rank == late else own for rank, own in enumerate(pace)]
        true_ms["COM036"] = step_ms(before) - step_ms(run(base, level))
    with tempfile.TemporaryDirectory() as folder:
        paths = []
        for rank in before:
            paths.append(Path(folder, f"rank{rank.rank}.json"))
            paths[-1].write_bytes(rank.json())
        report = tt.analyze_ranks(paths)
    if not report.jobs:
        return []
    (job,) = report.jobs
    out = []
    for finding in job.findings:
        cost: Cost | None = finding.cost
        mine = finding.code[:3] in codes and finding.ranks is not None and set(finding.ranks.ranks) <= has
        alone = finding.code == "COM036" and on == "one" and finding.evidence["late_rank"] in has
        if cost is None or not (mine or alone):
            continue
        out.append(
            Case(
                name,
                on,
                finding.code,
                cost.method,
                cost.of_ms,
                true_ms["COM036" if alone else ""],
                cost.low_ms,
                cost.high_ms,
            )
        )
    if mine_more := [case for case in out if case.code != "COM036"]:
        # several findings of one fault: the one that says most is its price
        best = max(mine_more, key=lambda case: case.high_ms)
        out = [case for case in out if case.code == "COM036" or case is best]
    return out


def run_fix(name: str) -> list[Case]:
    """Make fixes of a random program on some ranks of a job; return what the joint replay says each saves."""
    _, on, seed = name.split("-")
    draw = random.Random(name)
    while True:
        program = replace(random_program(draw.randrange(1 << 30)), n_warm=0, n_steps=8)
        if any(isinstance(one, Launch) and one.stream == COMM for one in program.instructions()):
            break
    n_ranks = draw.choice([2, 3, 4, 8])
    pace = [draw.choice([1.0, 1.0, draw.uniform(1.0, 1.3)]) for _ in range(n_ranks)]
    has = _those(on, n_ranks, draw)

    def run(fixed: Program) -> list[RankRun]:
        return run_job([_paced(fixed if at in has else program, own) for at, own in enumerate(pace)], int(seed))

    before = run(program)
    made = fixes(program, int(seed))
    # a kernel that is made faster must not be a collective, nor a fix one that the host makes elsewhere
    made = [one for one in made if one.kind not in ("overlap", "loader")]
    said = _joint_savings(before, has, [one.edits for one in made])
    before_ms = step_ms(before)
    return [
        Case(name, on, one.name, "all ranks: fix", before_ms, before_ms - step_ms(run(one.program)), low, high)
        for one, (low, high) in zip(made, said, strict=False)
    ]


def _joint_savings(
    ranks: Sequence[RankRun], has: set[int], edits: Sequence[Callable[[Trace], list[Edit]]]
) -> list[tuple[float, float]]:
    """Return the interval in ms of each set of edits, made on the ranks that ``has`` names."""
    records, skeletons = [], []
    for rank in ranks:
        trace = rank.trace()
        result = diagnose(trace)
        records.append(build_record(trace, f"job/rank{rank.rank}.json", result))
        skeletons.append(skeleton_of(trace, {at: one(trace) for at, one in enumerate(edits)}))
    jobs = detect_jobs(records)
    if not jobs:
        return []
    matches = match(records, jobs[0].numbers)
    waits = waiting(records, matches)
    steps = [np.searchsorted(one.steps.number, waits.step[waits.steady]) for one in records]
    joint = JointSavings(skeletons, matches, steps, n_point_to_point=0)
    if joint.reason:
        return []
    out = []
    for at, one in enumerate(edits):
        fixed: Fixed = {}
        for rank in sorted(has):
            trace = ranks[rank].trace()
            replayed = model(trace)
            promise = replayed.predict(one(trace))
            step = replayed.step_ns
            ends = widened(promise.low_ns / step, promise.high_ns / step, margins("replay"), step_noise(trace))
            saving = skeletons[rank].saving_ns[at]
            if abs(saving) > 0.001 * step:
                fixed[rank] = [(at, tuple(min(max(end, 0.0) * step / saving, 3.0) for end in ends))]
        low, high = interval_ns(joint, joint.savings_ns(fixed, 2)) if fixed else (0.0, 0.0)
        out.append((max(low, 0.0) / 1e6, high / 1e6))
    return out


def run_any(name: str) -> list[Case]:
    """Run a case."""
    return run_fix(name) if name.startswith("fix-") else run_case(name)


def names(n_seeds: int, half: str) -> Iterator[str]:
    """Yield the names of the cases."""
    for seed in range(n_seeds):
        for fault in ("fix", *FAULTS):
            for on in ("one", "some", "all"):
                name = f"{fault}-{on}-{seed}"
                if half in ("both", half_of(name)) and (fault == "fix" or on == "one"):
                    yield name


def print_table(cases: Sequence[Case], worst: int) -> None:
    """Print coverage and width of what was promised."""
    cases = [case for case in cases if max(case.high_ms, case.true_ms) >= SMALL * case.step_ms]
    print(f"{'what':34}{'cases':>6}{'inside':>8}{'width':>8}{'too low':>9}{'too high':>9}")
    kinds: dict[str, list[Case]] = {}
    for case in cases:
        joint = "joint" if case.method.startswith("all ranks") else "bound"
        what = "a fix" if case.name.startswith("fix") else "COM036" if case.code == "COM036" else "finding"
        kinds.setdefault(f"{what}, {joint}", []).append(case)
        if what == "a fix":
            kinds.setdefault(f"a fix on {case.on}", []).append(case)
    for kind, some in sorted(kinds.items()):
        inside = sum(case.inside for case in some) / len(some)
        low = sum(case.true_ms > case.high_ms and not case.inside for case in some) / len(some)
        high = sum(case.true_ms < case.low_ms and not case.inside for case in some) / len(some)
        width = float(np.median([case.width for case in some]))
        print(f"{kind:34}{len(some):6}{inside:8.0%}{width:8.1%}{low:9.0%}{high:9.0%}")
    missed = sorted((case for case in cases if not case.inside), key=lambda case: -_miss(case))
    for case in missed[:worst]:
        print(
            f"{case.name:20}{case.code:8}step {case.step_ms:8.3f} true {case.true_ms:8.3f}"
            f" promised {case.low_ms:.3f} to {case.high_ms:.3f}  {case.method}"
        )


def _miss(case: Case) -> float:
    return max(case.low_ms - case.true_ms, case.true_ms - case.high_ms) / case.step_ms


def main() -> None:
    """Run the cases and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--half", choices=("dev", "held", "both"), default="dev")
    parser.add_argument("--seeds", type=int, default=12)
    parser.add_argument("--worst", type=int, default=0)
    parser.add_argument("--processes", type=int, default=2)
    args = parser.parse_args()
    with Pool(args.processes) as pool:
        found = pool.map(run_any, list(names(args.seeds, args.half)), chunksize=2)
    print_table([case for some in found for case in some], args.worst)


if __name__ == "__main__":
    main()
