"""The Ray engine on a real cluster of two nodes on this machine, in an interpreter of its own."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
from diagnose.ranks.jobs import job, write

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("ray") is None, reason="Ray is not installed: pip install 'torchtriage[cluster]'"
    ),
]

SCRIPT = """
import sys
import ray
from ray.cluster_utils import Cluster
import torchtriage as tt

cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
cluster.add_node(num_cpus=1)
ray.init(address=cluster.address, log_to_driver=False, logging_level="error")
assert len([node for node in ray.nodes() if node["Alive"]]) == 2
report = tt.analyze_ranks(sys.argv[1:], engine="ray")
assert ray.is_initialized()  # a cluster that was connected stays so
assert report.to_json() == tt.analyze_ranks(sys.argv[1:], engine="local").to_json()
assert [one.findings[0].code for one in report.jobs] == ["COM036"], report.jobs
print([str(error) for error in report.unreadable])
ray.shutdown()
cluster.shutdown()
"""


def test_a_cluster_of_two_nodes_gives_the_same_bytes(tmp_path: Path) -> None:
    files = write(job(4, late={1: 4000}), tmp_path)
    bad = tmp_path / "rank9.json"
    bad.write_text("[]")
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT, *map(str, [*files, bad])],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-3000:]
    assert str(bad) in run.stdout


FAILING = """
import sys, threading, time
import ray
from ray.cluster_utils import Cluster
import torchtriage as tt

env = {"env_vars": {"PYTHONPATH": sys.argv[1]}}
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
leaves = cluster.add_node(num_cpus=1)
ray.init(address=cluster.address, log_to_driver=False, logging_level="error", runtime_env=env)
threading.Timer(4, cluster.remove_node, [leaves, False]).start()
files = sys.argv[2:]
report = tt.analyze_ranks(files, engine="ray")
for error in report.unreadable:
    print(str(error).replace(chr(10), " "))
good = [file for file in files if not any(name in file for name in ("rank2", "rank4"))]
assert report.to_json() == tt.analyze_ranks(good, engine="local").to_json()
ray.shutdown()
cluster.shutdown()
"""

# in each process of the cluster: what may happen to one that reads a file
PATCH = """
import os, time
import torchtriage.core.trace as trace

read = trace.read_trace

def patched(path, **options):
    time.sleep(1)
    if "rank2" in str(path):
        os.kill(os.getpid(), 9)
    return read(path, **options)

trace.read_trace = patched
"""


def test_killed_workers_and_a_lost_node_cost_their_files_only(tmp_path: Path) -> None:
    files = write(job(6, late={1: 4000}), tmp_path / "run")
    files[4].write_text("[]")
    (tmp_path / "patch").mkdir()
    (tmp_path / "patch" / "sitecustomize.py").write_text(PATCH)
    run = subprocess.run(
        [sys.executable, "-c", FAILING, str(tmp_path / "patch"), *map(str, files)],
        capture_output=True,
        text=True,
        timeout=1200,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-3000:]
    # Ray tells on standard output what became of the node
    said = [line for line in run.stdout.splitlines() if str(tmp_path) in line]
    assert [name for line in said for name in ("rank2", "rank4") if name in line] == ["rank2", "rank4"]
    assert "out of memory, 3 times" in said[0]
