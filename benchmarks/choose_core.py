"""Chooses the core of the open benchmark: few recordings with every fault, family and part.

    python benchmarks/choose_core.py benchmark benchmarks/core

For each fault, a small recording of a family that is not there yet, with its clean twin (and the
other rank of both); one of each look-alike; a clean recording of each family still missing.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from torchtriage.learn.dataset.recordings import DatasetItem, dataset_items
from torchtriage_benchmark.recording.checksums import write_index


def size(item: DatasetItem) -> int:
    """Return the bytes of a recording."""
    return item.path.stat().st_size + item.path.with_suffix(".json").stat().st_size


def chosen(items: Iterable[DatasetItem]) -> Iterator[DatasetItem]:
    """Yield the core, some of it more than once."""
    there = {one.id: one for one in items if one.about.get("part", "eager") != "synthetic"}
    families: set[str] = set()

    def best(some: list[DatasetItem]) -> DatasetItem:
        found = min(some, key=lambda one: (one.about["family"] in families, size(one), one.id))
        families.add(found.about["family"])
        return found

    for code in sorted({one.code for one in there.values()} - {""}):
        ranks = [one for one in there.values() if one.code == code and one.about["twin"] in there]
        whole = [one for one in ranks if one.about["rank"] == 0 and all_ranks(one, there)]
        if whole:
            yield from all_ranks(best(whole), there)
    for name in sorted({one.about.get("lookalike", "") for one in there.values()} - {""}):
        yield best([one for one in there.values() if one.about.get("lookalike") == name])
    for family in sorted({one.about["family"] for one in there.values()} - families):
        yield best(
            [one for one in there.values() if one.about["family"] == family and not one.code and one.about["rank"] == 0]
        )


def all_ranks(item: DatasetItem, there: dict[str, DatasetItem]) -> list[DatasetItem]:
    """Return an item of rank 0, its twin and the other ranks of both; empty when one is missing."""
    number = item.id[-4:]
    prefix = item.id.removesuffix(number)
    ids = [item.id, item.about["twin"]]
    if item.about["part"] == "ranks":
        ids += [f"{prefix}{int(one[-4:]) + 1:04d}" for one in ids]
    return [there[one] for one in ids] if all(one in there for one in ids) else []


def main() -> None:
    """Copy the core."""
    folder, core = map(Path, sys.argv[1:])
    core.mkdir(parents=True, exist_ok=True)
    for old in core.iterdir():
        old.unlink()
    found = {item.id: item for item in chosen(list(dataset_items(folder)))}
    for one in found.values():
        for path in (one.path, one.path.with_suffix(".json")):
            shutil.copy(path, core / path.name)
    write_index(core, 0)
    total = sum(path.stat().st_size for path in core.iterdir())
    print(f"{len(found)} recordings, {total / 1e6:.1f} MB in {core}")


if __name__ == "__main__":
    main()
