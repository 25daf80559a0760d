"""Made-up jobs that hang, judged by PyTorch's own analyzer of flight recorders and by ours."""

from __future__ import annotations

import random
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from diagnose.attach.nccl_dumps import dump, entry

from torchtriage.diagnose.attach import flight_recorder

pytestmark = [pytest.mark.torch, pytest.mark.slow]
GROUPS = {"0": [0, 1, 2, 3], "1": [0, 1], "2": [2, 3]}


def job(seed: int) -> list[list[dict[str, Any]]]:
    """Return the records of four ranks: steps of two groups, and one of them ends in a way of its own."""
    rng = random.Random(seed)
    way = rng.choice(["moves", "missing", "missing, others went ahead", "other op", "other size"])
    group, steps = rng.choice(sorted(GROUPS)), rng.randint(2, 9)
    odd = rng.choice(GROUPS[group])
    ranks = []
    for rank in range(4):
        mine = [name for name in GROUPS if rank in GROUPS[name]]
        rows = [
            entry(step, group=(name, f"pg{name}"), sizes=(64 * step,), record=len(mine) * (step - 1) + place)
            for step in range(1, steps + 1)
            for place, name in enumerate(mine)
        ]

        def last(number: int, op: str = "all_reduce", size: int = 8) -> dict[str, Any]:
            named = (group, f"pg{group}")
            return entry(number, op, group=named, sizes=(size,), state="started", record=len(rows) + number)  # noqa: B023

        if group in mine and way != "moves":
            if not way.startswith("missing"):
                change = {"op": "broadcast"} if way == "other op" else {"size": 7}
                rows.append(last(steps + 1, **(change if rank == odd else {})))
            elif rank != odd:
                rows += [last(steps + 1 + ahead) for ahead in range(3 if "ahead" in way else 1)]
        ranks.append(rows)
    return ranks


@pytest.mark.parametrize("seed", range(12))
def test_both_name_the_same_collective_and_ranks(seed: int, tmp_path: Path) -> None:
    pytest.importorskip("tabulate")
    for rank, rows in enumerate(job(seed)):
        (tmp_path / f"trace_rank_{rank}").write_bytes(dump(rows, GROUPS))
    command = [sys.executable, "-m", "torch.distributed.flight_recorder.fr_trace", str(tmp_path), "-p", "trace_rank_"]
    theirs = subprocess.run(command, capture_output=True, text=True, check=True)
    text = theirs.stdout + theirs.stderr
    number = re.search(r"[Ss]equence number: (\d+)", text)
    missing = re.search(r"missing ranks: \{(.*?)\}", text)
    found = flight_recorder.waits(
        {rank: flight_recorder.read(path) for rank, path in flight_recorder.find_dumps(tmp_path).items()}
    )
    assert [wait.number for wait in found] == ([int(number[1])] if number else []), text
    if found:
        assert (found[0].kind == "missing") == (missing is not None), text
        assert list(found[0].missing) == ([int(rank) for rank in missing[1].split(",")] if missing else []), text
