"""Traces to run commands on, and a runner that never lets a traceback pass."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from builder import TraceBuilder, syncing
from click.testing import CliRunner, Result

from torchtriage.cli.main import cli

Run = Callable[..., Result]


def steady() -> TraceBuilder:
    """Return steps that keep the GPU busy: nothing to find."""
    builder = TraceBuilder()
    for index in range(5):
        at = index * 1000.0
        builder.step(index + 3, at, 1000).op("aten::mm", at + 10.5, 20)
        builder.launch(at + 12, 5, at + 50, 998, "sm90_gemm_bf16_tn")
    return builder


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in a folder with traces of every verdict: slow, fine, refused, broken."""
    monkeypatch.chdir(tmp_path)
    launches = TraceBuilder().step(0, 0, 100)
    for at in range(10):
        launches.call("cudaLaunchKernel", at * 10, 5)
    (tmp_path / "slow.json").write_bytes(syncing(TraceBuilder(), n_steps=4).json())
    (tmp_path / "fine.json").write_bytes(steady().json())
    (tmp_path / "refused.json").write_bytes(launches.json())
    (tmp_path / "broken.json").write_text("hello")
    return tmp_path


@pytest.fixture
def run(folder: Path) -> Run:
    """Return a function that runs the command line in the folder of traces."""

    def run(*args: str | Path, code: int | None = None, stdin: bytes | None = None) -> Result:
        result = CliRunner().invoke(cli, [str(arg) for arg in args], input=stdin)
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        assert "Traceback" not in result.output
        if code is not None:
            assert result.exit_code == code, result.output
        return result

    return run
