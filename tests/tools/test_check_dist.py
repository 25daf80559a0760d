"""What would be published is looked at: made wheels, each with one thing wrong."""

from __future__ import annotations

import io
import tarfile
import zipfile
from pathlib import Path

import pytest
from tools import check_dist

LINUX = "torchtriage-0.2.0-py3-none-manylinux_2_28_x86_64.whl"
FILES = (
    "torchtriage/__init__.py",
    "torchtriage/core/trace/libtorchtriage_native.so",
    "torchtriage-0.2.0.dist-info/licenses/LICENSE",
)


def wheel(folder: Path, name: str = LINUX, files: tuple[str, ...] = FILES) -> Path:
    with zipfile.ZipFile(folder / name, "w") as archive:
        for file in files:
            archive.writestr(file, "")
    return folder / name


def test_quiet_on_a_wheel_as_it_should_be(tmp_path: Path) -> None:
    assert list(check_dist.problems_of_wheel(wheel(tmp_path))) == []


@pytest.mark.parametrize(
    ("name", "files", "words"),
    [
        ("torchtriage-0.2.0-py3-none-any.whl", FILES, "py3-none and one of"),
        ("torchtriage-0.2.0-cp311-cp311-manylinux_2_28_x86_64.whl", FILES, "py3-none and one of"),
        ("torchtriage-0.2.0-py3-none-linux_x86_64.whl", FILES, "py3-none and one of"),
        ("torchtriage-0.2.0-py3-none-win_amd64.whl", FILES, "torchtriage_native.dll"),
        (LINUX, (FILES[0], FILES[2]), "expected the library"),
        (LINUX, FILES[:2], "expected LICENSE"),
        (LINUX, (*FILES, "tests/test_all.py"), "the package alone"),
        (LINUX, (*FILES, "torchtriage/__pycache__/a.pyc"), "the package alone"),
        (LINUX, (*FILES, "torchtriage_benchmark/core.py"), "the package alone"),
    ],
)
def test_what_is_wrong_with_a_wheel(tmp_path: Path, name: str, files: tuple[str, ...], words: str) -> None:
    assert words in "\n".join(check_dist.problems_of_wheel(wheel(tmp_path, name, files)))


def test_a_wheel_that_is_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check_dist, "MAX_MB", 1e-4)
    path = wheel(tmp_path)
    assert "expected at most" in "\n".join(check_dist.problems_of_wheel(path))


def test_a_source_that_cannot_build_the_library(tmp_path: Path) -> None:
    path = tmp_path / "torchtriage-0.2.0.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        archive.addfile(tarfile.TarInfo("torchtriage-0.2.0/LICENSE"), io.BytesIO())
    (problem,) = check_dist.problems_of_source(path)
    assert "native/Cargo.lock" in problem
    assert "LICENSE" not in problem


def test_a_tag_that_the_files_and_the_notes_do_not_have(tmp_path: Path) -> None:
    (tmp_path / "CHANGELOG.md").write_text("## [0.2.0] - unreleased\n")
    found = "\n".join(check_dist.problems_of_release("v0.3.0", [wheel(tmp_path)], tmp_path))
    assert "expected version 0.3.0" in found
    assert "[0.3.0] - DATE" in found
    assert "win_amd64" in found
    (tmp_path / "CHANGELOG.md").write_text("## [0.2.0] - 2026-12-01\n")
    files = [
        tmp_path / f"torchtriage-0.2.0-py3-none-{tag}.whl"
        for tag in (
            "manylinux_2_28_x86_64",
            "manylinux_2_28_aarch64",
            "macosx_11_0_arm64",
            "macosx_10_12_x86_64",
            "win_amd64",
        )
    ]
    assert list(check_dist.problems_of_release("v0.2.0", files, tmp_path)) == []
