"""Libraries of C++ kernels, which torch's cache artifacts leave out.

The artifacts of a graph on the processor hold the code that calls its kernels, not the libraries the C++ compiler
made of them: a process that finds the graph would compile every kernel again.
"""

from __future__ import annotations

import functools
import hashlib
import platform
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from torchtriage.core.machine import cpu_name
from torchtriage.core.whole_files import replacing

_ENDS = (".so", ".pyd")
_NAME = re.compile(r"(\w+)/(\w{4,})\.[\w.]+")
_CHECK = "VecISA"
"""Of the libraries by which torch finds out, in every process, what the processor's vectors are."""


def processor() -> str:
    """Return what a library compiled here may need: all that this processor can do."""
    known = ""
    if sys.platform == "linux":
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
        known = "".join(re.findall(r"^(?:flags|Features)\b.*$", text, re.MULTILINE)[:1])
    return f"{platform.machine()} {cpu_name()} {hashlib.sha256(known.encode()).hexdigest()[:16]}"


def compiled() -> dict[str, Path]:
    """Return the libraries of the kernels that this process compiled, by ``kind/file``."""
    libraries: dict[str, Path] = {}
    if "torch._inductor.codecache" not in sys.modules:  # another backend compiled
        return libraries
    for kind, torchs in _kinds().items():
        for key in list(torchs.cache):
            for path in _folder(key).glob(f"{key}.*"):
                if path.suffix in _ENDS:
                    libraries[f"{kind}/{path.name}"] = path
    if libraries:
        libraries.update({f"{_CHECK}/{path.name}": path for path in _checks()})
    return libraries


def restore(saved: Mapping[str, bytes]) -> None:
    """Put the libraries where torch looks for them, and let it look: it need not compile then."""
    if not saved:
        return
    kinds = _kinds()
    for name, data in saved.items():
        match = _NAME.fullmatch(name)
        if match is None or match[1] not in (*kinds, _CHECK) or not name.endswith(_ENDS):
            continue  # of a kind this torch does not have: compiled when it is asked for
        key = match[2]
        path = _folder(key) / name.rpartition("/")[2]
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            with replacing(path) as partial:
                partial.write_bytes(data)
        if match[1] == _CHECK:
            continue
        # found by its file alone, torch would first prepare the compiler's headers, for seconds
        torchs = kinds[match[1]]
        loaded = functools.cache(functools.partial(torchs._load_library, str(path), key))
        torchs.cache.setdefault(key, loaded)


def _kinds() -> dict[str, Any]:
    """Return torch's classes that compile and load libraries, by name; those that are known."""
    from torch._inductor import codecache

    names = ("CppCodeCache", "CppPythonBindingsCodeCache", "CppWrapperCodeCache")
    kinds = {name: getattr(codecache, name, None) for name in names}
    return {
        name: kind
        for name, kind in kinds.items()
        if isinstance(getattr(kind, "cache", None), dict) and hasattr(kind, "_load_library")
    }


def _checks() -> Iterator[Path]:
    """Yield the libraries in torch's cache that only try out which instructions there are."""
    from torch._inductor.codecache import cache_dir

    sources = _sources_of_checks()
    for path in Path(cache_dir()).glob("*/*"):
        if sources and path.suffix in _ENDS and path.name.count(".") == 1:
            text = path.with_suffix(".cpp")
            if text.exists() and text.read_text(encoding="utf-8").strip() in sources:
                yield path


def _sources_of_checks() -> set[str]:
    """Return what torch compiles to try instructions out: each kind of vector has some."""
    known: Any = sys.modules.get("torch._inductor.cpu_vec_isa")  # torch 2.4 has none
    kinds = [known.VecISA] if hasattr(known, "VecISA") else []
    for kind in kinds:
        kinds += kind.__subclasses__()
    return {
        value.strip()
        for kind in kinds
        for name, value in vars(kind).items()
        if name.endswith("_code") and isinstance(value, str)
    }


def _folder(key: str) -> Path:
    from torch._inductor.codecache import cache_dir

    return Path(cache_dir()) / key[1:3]
