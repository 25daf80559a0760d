"""What torch logs today of the lines of its kernels, and how it names their rows: compiled for the CPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from torchtriage.compile.logs.kernel_lines import read_graph_codes
from torchtriage.core.trace import read_trace
from torchtriage.diagnose.verdict.kernel_lines import find_kernel_lines

pytestmark = [pytest.mark.torch, pytest.mark.slow]

SCRIPT = """import torch

def net(x, w):
    a = torch.relu(x @ w)
    b = torch.relu(a @ w)
    return torch.softmax(b, -1)

compiled = torch.compile(net)
x, w = torch.ones(64, 64), torch.ones(64, 64, requires_grad=True)
compiled(x, w).sum().backward()
with torch.profiler.profile() as recorded:
    compiled(x, w).sum().backward()
recorded.export_chrome_trace("trace.json")
"""


def recorded_lines(folder: Path, script: str) -> dict[str, list[list[int]]]:
    """Run a script and return the lines of the rows of its graphs, in order, by what they are of."""
    (folder / "net.py").write_text(script)
    logs = folder / f"log{len(list(folder.glob('log*')))}"
    environment = {
        "TORCH_TRACE": str(logs),
        "INDUCTOR_PROVENANCE": "1",
        "TORCHINDUCTOR_CPP_ENABLE_KERNEL_PROFILE": "1",
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "cache"),
    }
    subprocess.run([sys.executable, "net.py"], check=True, cwd=folder, env={**os.environ, **environment})
    trace = read_trace(folder / "trace.json")
    lines = find_kernel_lines(trace, read_graph_codes(str(logs)))
    found: dict[str, list[list[int]]] = {}
    for row in np.flatnonzero(lines.of >= 0).tolist():
        kind = "written" if "cpp_fused" in trace.name_of(row) else trace.name_of(row)
        found.setdefault(kind, []).append([line.line for line in lines.at(row)])
    return found


def test_lines_are_those_of_the_source_also_when_it_was_edited_and_the_code_is_cached(tmp_path: Path) -> None:
    found = recorded_lines(tmp_path, SCRIPT)
    assert found["aten::mm"] == [[4], [5], [5], [5]]
    assert found["aten::addmm"] == [[4]]  # the gradient of w, added up
    # in the backward pass both relus share a constant of line 5
    assert sorted(map(sorted, found["written"])) == [[4], [4, 5], [5, 6], [5, 6]]
    moved = recorded_lines(tmp_path, f"# one line more\n{SCRIPT}")
    assert moved == {kind: [[line + 1 for line in lines] for lines in rows] for kind, rows in found.items()}
