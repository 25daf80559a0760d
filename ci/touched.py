"""Print the tests of what has changed since main: ``python ci/touched.py [BASE]``, for ``make check``."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ALWAYS = ("tests/test_public_surface.py",)
"""Every change of a module can break what holds for all of them."""


def git(*words: str) -> list[str]:
    return subprocess.run(["git", *words], capture_output=True, text=True, check=True).stdout.splitlines()


def changed(base: str) -> list[Path]:
    """Return the files that differ from where this branch left its base, untracked ones included."""
    since = git("merge-base", base, "HEAD")[0]
    return [Path(name) for name in (*git("diff", "--name-only", since), *git("ls-files", "-o", "--exclude-standard"))]


def tests_of(path: Path) -> Path | None:
    """Return the test module that mirrors a source file, else the nearest folder of tests above it."""
    if path.parts[0] == "tests":
        return path if path.name.startswith("test_") and path.exists() else None
    if path.parts[:2] == ("src", "torchtriage"):
        mirrored = Path("tests", *path.parts[2:])
    elif path.parts[:2] == ("packages", "torchtriage-benchmark") and "src" in path.parts:
        mirrored = Path("tests", "benchmark", *path.parts[4:])
    else:
        return None
    module = mirrored.with_name(f"test_{path.name}")
    if module.exists():
        return module
    folder = mirrored.parent
    while not folder.is_dir():
        folder = folder.parent
    return folder if folder != Path("tests") else None


def main() -> None:
    base = sys.argv[1] if len(sys.argv) > 1 else "origin/main" if git("branch", "-rl", "origin/main") else "HEAD~1"
    print(*sorted({*ALWAYS, *(str(test) for path in changed(base) if (test := tests_of(path)))}))


if __name__ == "__main__":
    main()
