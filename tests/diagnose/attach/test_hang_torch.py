"""Jobs of three gloo ranks that hang, each in its way: what the records and the stacks of all say."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.ports import free_port

from torchtriage.diagnose.attach.attach import Wish, attach
from torchtriage.diagnose.attach.processes import ranks_of

pytestmark = [pytest.mark.torch, pytest.mark.slow]
HERE = Path(__file__).parent
N_RANKS = 3


@contextmanager
def job(way: str, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Start a launcher whose children are the ranks."""
    (folder / "new").mkdir()
    port = free_port()
    env = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(N_RANKS)}
    env |= {"TORCH_FR_BUFFER_SIZE": "200", "OMP_NUM_THREADS": "1", "TORCH_FR_DUMP_TEMP_FILE": str(folder / "rank_")}
    start = f'for r in {" ".join(map(str, range(N_RANKS)))}; do RANK=$r "$@" & done; wait'
    words = [sys.executable, str(HERE / "hanging_rank.py"), way, str(folder)]
    launcher = subprocess.Popen(["sh", "-c", start, "sh", *words], env={**os.environ, **env}, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 90
        while len(list(folder.glob("rank_*"))) < N_RANKS and time.monotonic() < deadline:
            time.sleep(0.1)
        yield launcher
    finally:
        for process in ranks_of(launcher.pid):
            os.kill(process.pid, 9)
        launcher.wait()


@pytest.mark.parametrize(
    ("way", "verdict"),
    [
        ("sleeps", "Rank 1 never entered all_reduce number 4 of default_pg, in which ranks 0, 2 wait"),
        ("other op", "ranks 0, 2: all_reduce(Float[4]) at hanging_rank.py:"),
        ("crossed", "all_reduce number 1 of group"),
        ("stopped", "Rank 1 never entered all_reduce number 4 of default_pg, in which ranks 0, 2 wait"),
        ("locked", "Rank 2 is at hanging_rank.py:44 in locked"),
        ("fewer steps", "rank 2: all_gather"),
        ("no sender", "Rank 0 is at hanging_rank.py:63 in <module>, inside recv."),
        ("subgroup", "Rank 1 never entered all_reduce number 2 of group"),
    ],
)
def test_the_rank_that_is_missing_is_named(way, verdict, tmp_path):
    with job(way, tmp_path) as launcher:
        result = attach(str(launcher.pid), Wish(only_stacks=True))
    if any("py-spy" in note.message for note in result.notes):
        pytest.skip(result.notes[0].message)  # it is not here, or may not look
    assert any(verdict in line for line in result.verdict), result.verdict
