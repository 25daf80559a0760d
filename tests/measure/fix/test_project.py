"""The copy that programs on trial run in: whatever they do there, the project stays, and the copy is put back."""

from __future__ import annotations

from pathlib import Path

import pytest

from torchtriage.core.errors import UsageError
from torchtriage.measure.fix import project as module
from torchtriage.measure.fix.project import ProjectCopy, project_of


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "my projekt ü"
    (folder / "src" / "pkg").mkdir(parents=True)
    (folder / "pyproject.toml").write_text("")
    (folder / "train.py").write_text("print(1)\n")
    (folder / "src" / "pkg" / "a.py").write_text("x = 1\n")
    (folder / "empty").mkdir()
    (folder / "venv").mkdir()
    (folder / "venv" / "pyvenv.cfg").write_text("")
    (folder / "__pycache__").mkdir()
    monkeypatch.chdir(folder)
    return folder


def made(project: Path, *words: str, into: Path | None = None) -> ProjectCopy:
    return ProjectCopy.make(project, (into or project.parent) / "copy", words or ("train.py",))


def state(folder: Path) -> dict[str, tuple[str, bytes, int]]:
    """All of a folder: kinds, contents, and times of change."""
    return {
        path.relative_to(folder).as_posix(): (
            (f"link {path.readlink()}") if path.is_symlink() else "file" if path.is_file() else "folder",
            path.read_bytes() if path.is_file() else b"",
            path.lstat().st_mtime_ns if path.is_file() else 0,
        )
        for path in sorted(folder.rglob("*"))
    }


def test_a_copy_has_the_project_without_environments_and_caches(project):
    copy = made(project)
    left_out = {"venv", "venv/pyvenv.cfg", "__pycache__"}
    assert state(copy.root) == {name: row for name, row in state(project).items() if name not in left_out}
    assert copy.restore() == []


def test_whatever_a_program_does_is_put_back_and_named(project):
    copy = made(project)
    before, original = state(copy.root), state(project)
    (copy.root / "train.py").write_text("print(2)\n")
    (copy.root / "src" / "pkg" / "a.py").unlink()
    (copy.root / "runs" / "1").mkdir(parents=True)
    (copy.root / "runs" / "1" / "log.txt").write_text("x")
    (copy.root / "empty").rmdir()
    assert copy.restore() == ["runs/1/log.txt", "src/pkg/a.py", "train.py"]
    assert state(copy.root) == before
    assert state(project) == original


def test_a_file_that_became_a_folder_and_a_folder_that_became_a_file_are_put_back(project):
    copy = made(project)
    before = state(copy.root)
    (copy.root / "train.py").unlink()
    (copy.root / "train.py").mkdir()
    (copy.root / "train.py" / "x").write_text("x")
    (copy.root / "empty").rmdir()
    (copy.root / "empty").write_text("x")
    copy.restore()
    assert state(copy.root) == before


def test_nothing_is_written_through_links(project):
    real = project / "src" / "pkg" / "a.py"
    outside = project.parent / "data.txt"
    outside.write_text("data")
    (project / "absolute.py").symlink_to(real)
    (project / "relative.py").symlink_to("src/pkg/a.py")
    (project / "out.txt").symlink_to("../data.txt")
    (project / "folder").symlink_to(project / "src")
    copy = made(project, into=project.parent / "elsewhere")
    original = state(project)
    assert (copy.root / "out.txt").read_text() == "data"
    (copy.root / "absolute.py").write_text("script wrote\n")
    (copy.root / "folder" / "pkg" / "new.py").write_text("")
    copy.restore()
    with copy.changed({"absolute.py": b"y = 2\n", "relative.py": b"y = 2\n", "out.txt": b"changed"}):
        assert (copy.root / "absolute.py").read_text() == "y = 2\n"
        assert (copy.root / "src" / "pkg" / "a.py").read_text() == "x = 1\n"
    assert state(project) == original
    assert outside.read_text() == "data"
    assert copy.restore() == []


def test_a_change_lasts_for_a_run_alone_whatever_ends_it(project):
    copy = made(project)
    before = state(copy.root)
    with pytest.raises(KeyboardInterrupt), copy.changed({"train.py": b"print(3)\n"}):
        raise KeyboardInterrupt
    assert state(copy.root) == before


def test_a_copy_inside_its_own_project_does_not_grow(project):
    copy = made(project, into=project / "torchtriage-fix-x")
    assert copy.restore() == copy.restore() == []
    assert not list(copy.root.glob("torchtriage-fix-*"))


def test_measurements_in_the_project_are_no_part_of_it(project):
    measured = project / "measured"
    measured.mkdir()
    copy = ProjectCopy.make(project, project.parent / "other", ("train.py",), apart=measured)
    (measured / "result.json").write_text("{}")
    assert copy.restore() == []
    assert not (copy.root / "measured").exists()


def test_names_in_the_project_mean_the_copy_and_others_stay(project):
    words = ("train.py", str(project / "src"), str(project.parent), "--lr=1", "src")
    copy = made(project, *words)
    assert copy.command.arguments[-5:] == (
        str(copy.root / "train.py"), str(copy.root / "src"), str(project.parent), "--lr=1", "src",
    )  # fmt: skip
    assert copy.cwd == copy.root


def test_outside_of_the_project_the_current_folder_stays(project, monkeypatch):
    elsewhere = project.parent / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    copy = made(project, str(project / "train.py"))
    assert copy.cwd == elsewhere
    assert copy.command.arguments[-1] == str(copy.root / "train.py")


def test_modules_of_an_editable_install_are_those_of_the_copy(project, monkeypatch):
    monkeypatch.setattr("sys.path", ["", str(project / "src"), "/usr/lib/python3"])
    copy = made(project)
    assert copy.extra_paths == (str(copy.root / "src"),)


def test_too_large_a_project_is_refused_before_anything_is_copied(project, monkeypatch):
    monkeypatch.setattr(module, "MOST_BYTES", 5)
    with pytest.raises(UsageError, match="to copy, found"):
        made(project)
    assert not (project.parent / "copy").exists()


def test_the_project_is_the_folder_with_its_marks_else_the_scripts_own(project, tmp_path, monkeypatch):
    assert project_of(("src/pkg/a.py",)) == project
    assert project_of(("-m", "pkg.a")) == project
    assert project_of(("src/pkg/a.py",), "src") == project / "src"
    with pytest.raises(UsageError, match="holds the script"):
        project_of(("train.py",), "src")


def test_behind_an_interpreter_or_a_launcher_the_script_says_where_the_project_is(project, tmp_path):
    program = tmp_path / "env" / "bin" / "python3"
    program.parent.mkdir(parents=True)
    program.write_text("")
    program.chmod(0o755)
    words = (str(program), "-u", "train.py")
    assert project_of(words) == project_of(words, str(project)) == project
    assert project_of((str(program), "-m", "pkg.a"), str(project)) == project
    assert project_of((str(program), str(project / "src" / "pkg" / "a.py")), "src") == project / "src"
    copy = made(project, *words)
    assert copy.command.arguments == (str(program), "-u", str(copy.root / "train.py"))


def test_a_program_of_an_environment_in_the_project_is_that_of_the_project(project):
    program = project / "venv" / "bin" / "torchrun"
    program.parent.mkdir()
    program.write_text("")
    program.chmod(0o755)
    copy = made(project, "venv/bin/torchrun", "train.py")
    assert copy.command.arguments == (str(program), str(copy.root / "train.py"))
    absolute = made(project, str(program), "train.py", into=project.parent / "other")
    assert absolute.command.arguments[0] == str(program)


@pytest.mark.parametrize("name", ["run.sh", "train"])
def test_a_program_of_the_project_runs_from_the_copy(project, monkeypatch, name):
    program = project / name
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    elsewhere = project.parent / "elsewhere"
    elsewhere.mkdir()
    for number, (folder, word) in enumerate(
        ((project, f"./{name}"), (project, str(program)), (elsewhere, f"../{project.name}/{name}"))
    ):
        monkeypatch.chdir(folder)
        assert project_of((word, "--lr=1")) == project_of((word,), str(project)) == project
        copy = made(project, word, "--lr=1", into=project.parent / f"{number}")
        assert copy.command.arguments == (str(copy.root / name), "--lr=1")


def test_a_launcher_says_nothing_of_where_the_project_is(project, tmp_path, monkeypatch):
    for marker in ("env/pyvenv.cfg", "conda/conda-meta", "system/none"):
        folder = tmp_path / marker.partition("/")[0]
        (folder / "bin").mkdir(parents=True)
        (tmp_path / marker).write_text("")
        if marker.startswith("system"):
            monkeypatch.setenv("PATH", str(folder / "bin"))
        assert project_of((str(folder / "bin" / "launch"), "train")) == project


def test_what_is_saved_into_the_project_meanwhile_changes_no_run(tmp_path, monkeypatch):
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "a.py").write_text("first")
    monkeypatch.chdir(folder)
    copy = ProjectCopy.make(folder, tmp_path / "copy", ("a.py",))
    (folder / "a.py").write_text("second")
    (folder / "b.py").write_text("new")
    assert copy.restore() == []
    assert (copy.root / "a.py").read_text() == "first"
