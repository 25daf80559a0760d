"""One file with the plan and what torch compiled, for the next process."""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Sequence
from pathlib import Path

import torch

from torchtriage.compile.bucketing import libraries
from torchtriage.compile.bucketing.planning import BucketPlan
from torchtriage.core.errors import UsageError
from torchtriage.core.whole_files import replacing

FORMAT = "torchtriage-buckets/1"
_PLAN, _CACHES, _LIBRARIES = "plan.json", "caches.bin", "libraries/"


def save(path: str | os.PathLike[str], plan: BucketPlan, history: Sequence[tuple[int, ...]]) -> None:
    """Write plan, sizes and caches; a file there is replaced at once or not at all."""
    caches = b""
    if hasattr(torch.compiler, "save_cache_artifacts"):
        made = torch.compiler.save_cache_artifacts()
        caches = made[0] if made is not None else b""
    document = {
        "format": FORMAT,
        "torch": str(torch.__version__),
        "processor": libraries.processor(),
        "buckets": {axis: list(sizes) for axis, sizes in plan.buckets.items()},
        "sizes": [list(sizes) for sizes in history],
    }
    with replacing(Path(path)) as partial, zipfile.ZipFile(partial, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr(_PLAN, json.dumps(document))
        file.writestr(_CACHES, caches)
        for name, library in libraries.compiled().items():
            file.write(library, f"{_LIBRARIES}{name}")


def load(path: str | os.PathLike[str], axes: Sequence[str]) -> tuple[BucketPlan, list[tuple[int, ...]], str]:
    """Return plan and sizes, and a warning where the caches are not used; loads the caches."""
    where = str(path)
    try:
        with zipfile.ZipFile(path) as file:
            document = json.loads(file.read(_PLAN))
            caches = file.read(_CACHES)
            compiled = {
                name.removeprefix(_LIBRARIES): file.read(name)
                for name in file.namelist()
                if name.startswith(_LIBRARIES)
            }
        if document["format"] != FORMAT:
            raise UsageError(f"expected {FORMAT}, found {document['format']!r:.60}", where=where)
        buckets = {str(axis): tuple(map(int, sizes)) for axis, sizes in document["buckets"].items()}
        history = [tuple(map(int, size)) for size in document["sizes"]]
        version, processor = str(document["torch"]), str(document["processor"])
    except FileNotFoundError:
        raise UsageError("there is no such file", where=where) from None
    except (zipfile.BadZipFile, KeyError, ValueError, TypeError, AttributeError, OSError) as error:
        raise UsageError(
            f"expected what BucketedModule.save() wrote, found something else ({error})", where=where
        ) from None
    odd = [sizes for sizes in history if len(sizes) != len(axes) or min(sizes) < 1]
    if tuple(buckets) != tuple(axes) or odd:  # an axis may have no size that is worth a bucket
        raise UsageError(f"expected buckets of {', '.join(axes)}, found {', '.join(buckets)}", where=where)
    plan = BucketPlan({axis: tuple(sorted(set(sizes))) for axis, sizes in buckets.items()})
    if version != str(torch.__version__):
        return plan, history, f"caches are from torch {version}: compiling again"
    if not caches or not hasattr(torch.compiler, "load_cache_artifacts"):
        return plan, history, "no caches were saved: compiling again"
    if torch.compiler.load_cache_artifacts(caches) is None:
        return plan, history, "torch rejected the caches: compiling again"
    if compiled and processor != libraries.processor():
        return plan, history, f"C++ kernels are for another processor ({processor}): compiling again"
    libraries.restore(compiled)
    return plan, history, ""
