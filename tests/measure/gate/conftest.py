"""Stores to write to: a file, and a database of a PostgreSQL server started for the tests."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from importlib import import_module
from itertools import count
from pathlib import Path

import pytest
from tests.conftest import postgres_programs
from tests.measure.gate.repositories import git

NUMBERS = count()


@pytest.fixture(scope="session")
def postgres() -> Iterator[Callable[[], str]]:
    """Return a function that makes an empty place in a database and returns its URL.

    A server of its own, behind a socket in a folder of its own, run by a user without rights:
    PostgreSQL refuses to be run by root.
    """
    programs = postgres_programs()
    assert programs is not None
    # a socket's path has to be short, and the folder the other user's
    folder = Path(tempfile.mkdtemp(prefix="ttpg-"))
    as_user: dict[str, object] = {"cwd": folder, "env": {"PATH": os.environ["PATH"], "LC_ALL": "C"}}
    if os.geteuid() == 0:
        nobody = pwd.getpwnam("nobody")
        os.chown(folder, nobody.pw_uid, nobody.pw_gid)
        as_user |= {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}

    def run(program: str, *words: str) -> None:
        done = subprocess.run(
            [programs / program, *words],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            timeout=120,
            check=False,
            **as_user,
        )
        assert done.returncode == 0, f"{program}: {done.stderr}"

    data = str(folder / "data")
    run("initdb", "-D", data, "-U", "tester", "-A", "trust", "-E", "UTF8", "-N")
    options = f"-k {folder} -c listen_addresses= -c fsync=off"
    run("pg_ctl", "-D", data, "-o", options, "-l", str(folder / "log"), "-w", "start")
    try:

        def place() -> str:
            # a schema each: a database is a thousand files, and as long to make as to remove
            name = f"gate_{next(NUMBERS)}"
            url = f"postgresql://tester@/postgres?host={folder}"
            with import_module("psycopg").connect(url, autocommit=True) as connection:
                connection.execute(f"CREATE SCHEMA {name}")
            return f"{url}&options=-csearch_path%3D{name}"

        yield place
    finally:
        run("pg_ctl", "-D", data, "-m", "immediate", "-w", "stop")
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return where an empty store is to be: a path, or a URL."""
    if request.param == "sqlite":
        return str(tmp_path / "gate.db")
    url = request.getfixturevalue("postgres")()
    assert isinstance(url, str)
    return url


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a repository of two commits, on the branch ``topic``; ``main`` is the first."""
    for name in [one for one in os.environ if one.startswith(("GITHUB_", "CI_", "GIT_"))]:
        monkeypatch.delenv(name)
    folder = tmp_path / "work"
    (folder / "src" / "shop").mkdir(parents=True)
    (folder / "benchmarks").mkdir()
    git(folder, "init", "-q")
    (folder / "src" / "shop" / "__init__.py").write_text("NAME = 'old'\n")
    (folder / "benchmarks" / "bench.py").write_text(
        "import json, os, shop\n"
        "print(json.dumps({'metric': shop.NAME, 'unit': 's', 'value': 1}))\n"
        "open('trace.json', 'w').write(shop.NAME)\n"
        "open(os.environ.get('ORDER', os.devnull), 'a').write(shop.NAME + ' ')\n"
    )
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "first")
    git(folder, "checkout", "-q", "-b", "topic")
    (folder / "src" / "shop" / "__init__.py").write_text("NAME = 'new'\n")
    git(folder, "commit", "-q", "-a", "-m", "second")
    return folder
