"""Build the native library with cargo: ``python native/build.py`` puts it into the package.

Without cargo nothing happens; the package then reads with its Python engine.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
PACKAGE = HERE.parent / "src" / "torchtriage" / "core" / "trace"
NAMES = {"darwin": "libtorchtriage_native.dylib", "win32": "torchtriage_native.dll"}
NAME = NAMES.get(sys.platform, "libtorchtriage_native.so")


class BuildError(Exception):
    """Cargo is there and failed."""


def find_cargo() -> str | None:
    """Return cargo's path, also where rustup put it without telling the shell."""
    return shutil.which("cargo") or shutil.which("cargo", path=Path.home() / ".cargo" / "bin")


def build() -> Path | None:
    """Return the library, built if need be; None without cargo.

    Raises
    ------
    BuildError
        Cargo is there and failed, or put the library elsewhere.
    """
    cargo = find_cargo()
    if cargo is None:
        return None
    # cargo runs elsewhere than we do
    folder = Path(os.environ.get("CARGO_TARGET_DIR") or HERE / "target").resolve()
    # cargo finds rustc beside itself
    path = os.pathsep.join((str(Path(cargo).parent), os.environ.get("PATH", "")))
    # the library is for this machine, and stands where cargo puts it then
    others = {name: text for name, text in os.environ.items() if name != "CARGO_BUILD_TARGET"}
    done = subprocess.run(
        [cargo, "build", "--release", "--lib", "--locked", "--offline", "--target-dir", folder],
        cwd=HERE,
        env={**others, "PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise BuildError(done.stderr)
    library = folder / "release" / NAME
    if not library.is_file():
        raise BuildError(f"expected {library}, found none: does a config of cargo set a target?")
    return library


def main() -> int:
    """Put the library into the package."""
    try:
        library = build()
    except BuildError as error:
        print(error, file=sys.stderr)
        return 1
    if library is None:
        print("==> no cargo here: traces are read by the Python engine, several times slower")
        return 0
    target = PACKAGE / NAME
    if not target.exists() or target.read_bytes() != library.read_bytes():
        # under another name first: a library that is in use must not change
        fresh = target.with_name(target.name + ".new")
        shutil.copyfile(library, fresh)
        fresh.replace(target)
        print(f"==> built {NAME}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
