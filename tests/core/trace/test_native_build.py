"""The script that builds the native library, and what it makes of cargo's settings."""

from __future__ import annotations

import importlib.util
import subprocess
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[3] / "native" / "build.py"

pytestmark = pytest.mark.skipif(not SCRIPT.exists(), reason="native/ is not here")


@pytest.fixture
def native(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The script, with a cargo that is there."""
    spec = importlib.util.spec_from_file_location("native_build", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "find_cargo", lambda: "/bin/cargo")
    return module


def cargo(name: str, *, error: str = "") -> Any:
    """Return what runs in cargo's place: it writes the library where the real one would."""

    def run(command: list[Any], *, cwd: Path, env: dict[str, str], **_: Any) -> Any:
        folder = Path(cwd, command[-1], env.get("CARGO_BUILD_TARGET", ""), "release")
        folder.mkdir(parents=True)
        (folder / name).write_bytes(b"library")
        return subprocess.CompletedProcess(command, bool(error), stderr=error)

    return run


def test_a_relative_target_folder_is_the_callers(native: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CARGO_TARGET_DIR", "out")
    monkeypatch.setattr(native.subprocess, "run", cargo(native.NAME))
    assert native.build() == tmp_path / "out" / "release" / native.NAME


def test_the_library_is_for_this_machine(native: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CARGO_TARGET_DIR", str(tmp_path))
    monkeypatch.setenv("CARGO_BUILD_TARGET", "riscv64gc-unknown-linux-gnu")
    monkeypatch.setattr(native.subprocess, "run", cargo(native.NAME))
    assert native.build() == tmp_path / "release" / native.NAME
    assert (tmp_path / "release" / native.NAME).exists()


@pytest.mark.parametrize("error", ["", "rustc is too old"])
def test_a_library_that_is_not_there_is_an_error_of_the_build(
    native: Any, error: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CARGO_TARGET_DIR", str(tmp_path))
    monkeypatch.setattr(native.subprocess, "run", cargo("elsewhere.so", error=error))
    with pytest.raises(native.BuildError, match=error or "found none"):
        native.build()
