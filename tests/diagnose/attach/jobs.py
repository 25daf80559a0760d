"""Programs that tests attach to, each in processes of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.ports import free_port
from tests.waiting import wait_for

SAMPLED = """
import sys, time, torch, torchtriage as tt
torch.set_num_threads(1)
model = torch.nn.Linear(64, 64)
sampler = tt.sample(sys.argv[1], every_s=None)
open(sys.argv[2], "w").close()
n = 0
while True:
    model(torch.randn(16, 64)).sum().backward()
    sampler.step()
    n += 1
    while n == int(sys.argv[3]):
        time.sleep(0.1)
    time.sleep(0.01)
"""

TRAINED = """
import datetime, sys, time, torch, torch.distributed as dist, torchtriage as tt
torch.set_num_threads(1)
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=300))
sampler = tt.sample(sys.argv[1], every_s=None)
x, n = torch.ones(512, 512), 0
while True:
    y = x @ x
    if n == 5:
        open(sys.argv[2] + str(dist.get_rank()), "w").close()
    while n == int(sys.argv[3]) and dist.get_rank() == 1:
        time.sleep(0.1)
    dist.all_reduce(x)
    n += 1
    x /= 2
    sampler.step()
"""

DEBUGGED = """
import sys, time, torch, torch.distributed as dist
from torch.distributed.debug import start_debug_server
torch.set_num_threads(1)
dist.init_process_group("gloo")
start_debug_server(port=int(sys.argv[1]), fetch_timeout=float(sys.argv[4]))
x, n = torch.ones(64, 64), 0
while True:
    y = x @ x
    if n == 20:
        open(sys.argv[2] + str(dist.get_rank()), "w").close()
    while n == int(sys.argv[3]) and dist.get_rank() == 1:
        time.sleep(0.1)
    dist.all_reduce(x)
    n += 1
    x /= 2
    time.sleep(0.005)
"""


@contextmanager
def sampled(folder: Path, *, ranks: int = 1, stops_at: int = -1) -> Iterator[subprocess.Popen[bytes]]:
    """Start a launcher whose children have a sampler; yield it once all of them step."""
    start = f'for r in $(seq 0 {ranks - 1}); do RANK=$r WORLD_SIZE={ranks} "$0" -c "$1" $2 $3$r $4 & done; wait'
    words = ["sh", "-c", start, sys.executable, SAMPLED, str(folder / "samples"), str(folder / "up"), str(stops_at)]
    with _launched(words) as launcher:
        wait_for(lambda: len(list(folder.glob("up*"))) == ranks, 90)
        yield launcher


@contextmanager
def trained(folder: Path, *, stops_at: int = -1) -> Iterator[subprocess.Popen[bytes]]:
    """Start two gloo ranks that have a sampler; yield their launcher."""
    env = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"}
    start = 'for r in 0 1; do RANK=$r "$0" "$@" & done; wait'
    (folder / "train.py").write_text(TRAINED)
    words = ["sh", "-c", start, sys.executable, str(folder / "train.py"), str(folder / "samples"), str(folder / "up")]
    words.append(str(stops_at))
    with _launched(words, TORCH_FR_BUFFER_SIZE="200", **env) as launcher:
        wait_for(lambda: len(list(folder.glob("up*"))) == 2, 90)
        yield launcher


@contextmanager
def debugged(folder: Path, *, stops_at: int = -1, fetch_s: float = 60.0) -> Iterator[int]:
    """Start two gloo ranks with a debug server; yield its port."""
    port = free_port()
    env = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"}
    start = 'for r in 0 1; do RANK=$r "$0" -c "$@" & done; wait'
    arguments = [str(port), str(folder / "up"), str(stops_at), str(fetch_s)]
    words = ["sh", "-c", start, sys.executable, DEBUGGED, *arguments]
    with _launched(words, TORCH_FR_BUFFER_SIZE="200", **env):
        wait_for(lambda: len(list(folder.glob("up*"))) == 2, 90)
        yield port


@contextmanager
def _launched(words: list[str], **env: str) -> Iterator[subprocess.Popen[bytes]]:
    quiet = subprocess.DEVNULL
    launcher = subprocess.Popen(
        words, env={**os.environ, **env}, stdout=quiet, stderr=quiet, stdin=quiet, start_new_session=True
    )
    try:
        yield launcher
    finally:
        os.killpg(launcher.pid, 9)
        launcher.wait()
