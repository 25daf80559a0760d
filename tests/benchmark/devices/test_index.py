"""The index of the device part is whole; its two halves share no repository and no device."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from torchtriage.api.catalogue import pages
from torchtriage.core.errors import UsageError
from torchtriage.learn.dataset.recordings import dataset_items
from torchtriage_benchmark.devices.agreement import pairs
from torchtriage_benchmark.devices.fetch import fetch
from torchtriage_benchmark.devices.index import about, read_index, read_labels

DEVICES = Path(__file__).parents[3] / "benchmarks" / "devices"


def test_the_index_is_whole() -> None:
    entries = read_index(DEVICES)
    assert [entry.id for entry in entries] == [f"d{number:04}" for number in range(150)]
    assert all(entry.device and entry.workload and entry.files for entry in entries)
    checksums = [file.sha256 for entry in entries for file in entry.files]
    assert len(set(checksums)) == len(checksums) == 202


def test_the_halves_share_no_repository_and_no_device() -> None:
    halves = [[one for one in read_index(DEVICES) if one.split == split] for split in ("development", "test")]
    assert [len(half) for half in halves] == [75, 66]
    for told in ("repository", "device"):
        first, second = ({getattr(one, told) for one in half} for half in halves)
        assert not first & second


READ_TWICE = 120
"""Recordings that were found afterwards were read once."""


def test_what_came_later_is_of_repositories_of_its_own() -> None:
    entries = read_index(DEVICES)
    later = {entry.repository for entry in entries if entry.split == "later"}
    assert len(later) == 4
    assert later.isdisjoint(entry.repository for entry in entries if entry.split != "later")


def test_each_recording_of_the_halves_is_labelled_by_two_readers_and_all_once_for_all() -> None:
    entries = read_index(DEVICES)
    settled = read_labels(DEVICES / "labels.toml")
    readings = [read_labels(path) for path in sorted((DEVICES / "readings").glob("*.toml"))]
    assert settled.keys() == {entry.id for entry in entries}
    assert pairs(readings).keys() == {entry.id for entry in entries[:READ_TWICE] if entry.split != "later"}
    codes = {page.code for page in pages()}
    for label in (label for labels in (settled, *readings) for label in labels.values()):
        assert label["state"] in ("faulty", "healthy", "cannot be judged")
        assert label["story"]
        assert bool(label.get("faults")) == (label["state"] == "faulty")
        for fault in label.get("faults", []):
            assert {fault["code"], *fault.get("or", ())} <= codes
            assert 0 < len(fault["intervals"]) <= 200
            assert all(begin < end for begin, end in fault["intervals"])


def test_what_readers_do_not_agree_on_is_settled_with_a_reason() -> None:
    settled = read_labels(DEVICES / "labels.toml")
    readings = [read_labels(path) for path in sorted((DEVICES / "readings").glob("*.toml"))]
    for key, (one, two) in pairs(readings).items():
        firsts = [label["faults"][0]["code"] if label.get("faults") else label["state"] for label in (one, two)]
        if firsts[0] != firsts[1]:
            assert settled[key]["settled"], key
        elif "settled" not in settled[key]:
            assert firsts[0] in (settled[key]["state"], settled[key].get("faults", [{"code": ""}])[0]["code"]), key


@pytest.mark.parametrize(
    ("key", "value"),
    [("id", "../d0001"), ("repository", "../../etc/passwd"), ("split", "train"), ("files", [{"commit": "main"}])],
)
def test_an_index_with_a_value_of_another_form_is_refused(tmp_path: Path, key: str, value: object) -> None:
    row = json.loads((DEVICES / "index.json").read_text())["items"][0]
    (tmp_path / "index.json").write_text(json.dumps({"items": [{**row, key: value}]}))
    with pytest.raises(UsageError, match=r"index\.json"):
        read_index(tmp_path)


def test_a_label_gives_the_first_faults_type_and_all_faults_windows() -> None:
    entry = next(one for one in read_index(DEVICES) if len(one.files) == 8)
    faults = [
        {"code": "LCH014", "or": ["HST020"], "rank": 2, "intervals": [[10, 20], [18, 30]]},
        {"code": "CPY007", "rank": 2, "intervals": [[1, 5]]},
        {"code": "COM036", "rank": 0, "intervals": [[100, 200]]},
    ]
    known = about(entry, {"state": "faulty", "faults": faults}, "0" * 64)
    assert (known["code"], known["or"], known["rank"]) == ("LCH014", ["HST020"], 2)
    assert known["content_sha256"] == entry.files[2].sha256
    assert known["intervals_ns"] == [[1, 5], [10, 30]]
    assert about(entry, {}, "0" * 64)["state"] == "not labelled"


def test_labels_that_are_no_toml_are_refused(tmp_path: Path) -> None:
    assert read_labels(tmp_path / "labels.toml") == {}
    (tmp_path / "labels.toml").write_text("[")
    with pytest.raises(UsageError):
        read_labels(tmp_path / "labels.toml")


@pytest.mark.data
def test_shared_recordings_are_items_whose_faults_are_in_windows(recordings: Path, tmp_path: Path) -> None:
    """Of the smallest: all that a folder is asked for is found, and every labelled fault is somewhere in it."""
    entries = [
        one for one in read_index(DEVICES) if len(one.files) == 1 and one.files[0].bytes < 1_000_000 and one.licence
    ]
    outcomes = fetch(entries, read_labels(DEVICES / "labels.toml"), tmp_path, local=recordings.parent)
    assert sum(not outcome.failure for outcome in outcomes) >= 30
    for item in dataset_items(tmp_path):
        assert len(item.windows_ns), item.id
        assert item.faulty.any() == bool(item.code), item.id


@pytest.mark.parametrize(
    "change",
    [
        {"items": []},
        {"files": []},
        {"path": "../../../etc/x"},
        {"path": "a\x1b[31m"},
        {"path": None},
        {"path": 7},
        {"member": "a\nb"},
        {"repository": "x/.."},
        {"bytes": 0},
        {"id": "d0001"},
    ],
    ids=str,
)
def test_an_entry_that_cannot_be_meant_is_refused(tmp_path: Path, change: dict[str, object]) -> None:
    rows = json.loads((DEVICES / "index.json").read_bytes())["items"][:2]
    (name, value), first = next(iter(change.items())), rows[0]
    if name == "items":
        rows = []
    else:
        (first if name in first else first["files"][0])[name] = value
    (tmp_path / "index.json").write_text(json.dumps({"items": rows}))
    with pytest.raises(UsageError, match="expected an index"):
        read_index(tmp_path)


@pytest.mark.parametrize("label", ["d0000 = 3", "[[d0000.faults]]\ncode = 'x'", "[[d0000.faults]]\nintervals = [[1]]"])
def test_a_label_that_cannot_be_read_is_refused(tmp_path: Path, label: str) -> None:
    path = tmp_path / "labels.toml"
    path.write_text(label)
    with pytest.raises(UsageError, match="expected labels"):
        read_labels(path)


def test_a_label_of_a_rank_that_is_not_there_is_refused() -> None:
    entry = read_index(DEVICES)[0]
    with pytest.raises(UsageError, match="one of its"):
        about(entry, {"faults": [{"code": "LCH014", "rank": 9, "intervals": [[0, 1]]}]}, "")
