"""Look at what would be published: ``python tools/check_dist.py FOLDER [TAG]``; the workflow of releases does."""

from __future__ import annotations

import re
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LIBRARIES = {
    r"manylinux_2_\d+_x86_64": "libtorchtriage_native.so",
    r"manylinux_2_\d+_aarch64": "libtorchtriage_native.so",
    r"macosx_11_0_arm64": "libtorchtriage_native.dylib",
    r"macosx_10_12_x86_64": "libtorchtriage_native.dylib",
    r"win_amd64": "torchtriage_native.dll",
}
"""The platforms that have a wheel, and what it holds for them."""
MAX_MB = 5.0
STRAY = re.compile(r"(^|/)(tests?|benchmarks|docs|\.venv)/|\.(pyc|pickle|npy|sqlite)$|/\.git")
INSIDE = re.compile(r"torchtriage(-[\w.]+\.dist-info)?/")


def problems_of_wheel(path: Path) -> Iterator[str]:
    """Yield what is wrong with one wheel."""
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
    libraries = [name for name in names if re.search(r"\.(so|dylib|dll)$", name)]
    expected = [f"torchtriage/core/trace/{lib}" for tag, lib in LIBRARIES.items() if _is_for(path, tag)]
    if not expected:
        yield f"expected py3-none and one of {', '.join(LIBRARIES)} in the name"
    if libraries != expected:
        yield f"expected the library {expected}, found {libraries}"
    if not any(name.endswith(".dist-info/licenses/LICENSE") for name in names):
        yield "expected LICENSE in the metadata, found none"
    strays = [name for name in names if STRAY.search(name) or not INSIDE.match(name)]
    if strays:
        yield f"expected the package alone, found {strays[:5]}"
    size = path.stat().st_size / 1e6
    if size > MAX_MB:
        yield f"expected at most {MAX_MB} MB, found {size:.2f}"


def problems_of_source(path: Path) -> Iterator[str]:
    """Yield what a source distribution lacks to build with and without cargo."""
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    needed = ("LICENSE", "README.md", "hatch_build.py", "native/build.py", "native/Cargo.lock", "native/src/lib.rs")
    missing = [name for name in needed if name not in names]
    if missing:
        yield f"expected {', '.join(missing)}, found none"


def problems_of_release(tag: str, files: list[Path], root: Path = ROOT) -> Iterator[str]:
    """Yield what contradicts the tag."""
    version = tag.removeprefix("v")
    others = [path.name for path in files if not path.name.startswith(f"torchtriage-{version}")]
    if others:
        yield f"expected version {version}, found {others}"
    if not re.search(
        rf"^## \[{re.escape(version)}\] - \d{{4}}-\d\d-\d\d$", (root / "CHANGELOG.md").read_text(), re.MULTILINE
    ):
        yield f"expected '## [{version}] - DATE' in CHANGELOG.md"
    lacking = [tag for tag in LIBRARIES if not any(_is_for(path, tag) for path in files)]
    if lacking:
        yield f"expected a wheel for {', '.join(lacking)}"


def _is_for(path: Path, tag: str) -> bool:
    return re.search(rf"-py3-none-{tag}\.whl$", path.name) is not None


def main(folder: Path, tag: str = "") -> int:
    """Print what is wrong; 1 if anything is."""
    files = sorted(folder.iterdir())
    found = [
        f"{path.name}: {problem}"
        for path in files
        for problem in (problems_of_wheel(path) if path.suffix == ".whl" else problems_of_source(path))
    ]
    found += problems_of_release(tag, files) if tag else ()
    for path in files:
        print(f"{path.stat().st_size / 1e6:5.2f} MB  {path.name}")
    print("\n".join(found), file=sys.stderr)
    return bool(found)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), *sys.argv[2:]))
