"""Which rank is missing in which collective, from dumps as NCCL's watchdog writes them."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest
from diagnose.attach.nccl_dumps import dump, entry

from torchtriage.core.errors import AttachError
from torchtriage.diagnose.attach import flight_recorder
from torchtriage.diagnose.attach.flight_recorder import find_dumps, parse, waits
from torchtriage.diagnose.attach.hang import judge

WORLD = {"0": [0, 1, 2]}


def found(*ranks: tuple[list[dict[str, Any]], dict[str, list[int]]]) -> Any:
    return waits({rank: parse(dump(*one), "x") for rank, one in enumerate(ranks)})


def test_a_job_that_moves_waits_for_nothing():
    assert found(*[([entry(1), entry(2)], WORLD)] * 3) == ()
    # the last one may have been dumped a step earlier
    assert found(([entry(1), entry(2)], WORLD), ([entry(1)], WORLD), ([entry(1)], WORLD)) == ()


def test_a_rank_that_never_arrives_is_named():
    late = [entry(1)], WORLD
    waiting = [entry(1), entry(2, state="started", line=42), entry(3, state="scheduled")], WORLD
    (wait,) = found(waiting, late, waiting)
    assert (wait.kind, wait.number, wait.op) == ("missing", 2, "all_reduce")
    assert (wait.arrived, wait.missing, wait.unknown) == ((0, 2), (1,), ())
    assert wait.at is not None
    assert (wait.at.file, wait.at.line) == ("/job/train.py", 42)


def test_a_rank_without_a_dump_is_unknown_and_not_missing():
    waiting = [entry(1), entry(2, state="started")], WORLD
    (wait,) = found(waiting, waiting)
    assert (wait.kind, wait.missing, wait.unknown) == ("unfinished", (), (2,))


def test_a_full_ring_that_holds_nothing_of_the_group_is_unknown():
    groups = {"0": [0, 1], "1": [0, 1]}
    waiting = [entry(1, group=("1", "tp"), state="started")], groups
    lost = [entry(900, record=4000)], groups
    (wait,) = found(waiting, lost)
    assert (wait.missing, wait.unknown) == ((), (1,))
    (wait,) = found(waiting, ([entry(900, record=0)], groups))
    assert (wait.missing, wait.unknown) == ((1,), ())


def test_ranks_that_call_different_things_are_told_apart():
    one = [entry(1), entry(2, "all_reduce", state="started")], WORLD
    other = [entry(1), entry(2, "_all_gather_base", state="started", line=77)], WORLD
    (wait,) = found(one, other, one)
    assert wait.kind == "mismatch"
    assert wait.calls == (
        "ranks 0, 2: all_reduce(Float[1024]) at train.py:10",
        "rank 1: _all_gather_base(Float[1024]) at train.py:77",
    )


@pytest.mark.parametrize("other", [{"sizes": (1025,)}, {"dtype": "BFloat16"}])
def test_sizes_and_types_must_agree_where_the_collective_needs_it(other):
    groups = {"0": [0, 1]}
    one = [entry(1, state="started")], groups
    assert found(one, ([entry(1, state="started", **other)], groups))[0].kind == "mismatch"
    uneven = [entry(1, "all_to_all", state="started", **other)], groups
    assert found(([entry(1, "all_to_all", state="started")], groups), uneven)[0].kind == "unfinished"


def test_two_groups_entered_in_different_order_are_a_deadlock():
    groups = {"0": [0, 1], "1": [0, 1], "2": [0, 1]}
    one = [entry(1, group=("1", "tp"), state="started")], groups
    other = [entry(1, group=("2", "dp"), state="started")], groups
    result = judge("job", {0: parse(dump(*one), ""), 1: parse(dump(*other), "")}, {})
    assert [(wait.group, wait.missing) for wait in result.waits] == [("tp", (1,)), ("dp", (0,))]
    assert "Rank 1 waits in all_reduce number 1 of dp at train.py:10 instead." in result.verdict[0]


def test_a_group_of_other_ranks_is_nobodys_fault():
    groups = {"0": [0, 1, 2], "1": [0, 1]}
    waiting = [entry(1, group=("1", "tp"), state="started")], groups
    (wait,) = found(waiting, waiting, ([], {"0": [0, 1, 2]}))
    assert (wait.kind, wait.arrived, wait.missing, wait.unknown) == ("unfinished", (0, 1), (), ())


def test_a_send_that_waits_is_told():
    groups = {"0": [0, 1]}
    (wait,) = found(([entry(1, "send 0->1", state="started", is_p2p=True)], groups), ([], groups))
    assert (wait.kind, wait.op, wait.arrived) == ("p2p", "send 0->1", (0,))


def test_json_says_the_same_as_the_pickle():
    rows = [entry(1), entry(2, state="started")]
    text = json.dumps(pickle.loads(dump(rows, WORLD))).encode()
    assert parse(text, "x") == parse(dump(rows, WORLD), "x")


ENTRY = {"version": 1, "entries": [entry(1)]}
NESTED: list[Any] = ["text"]
for _ in range(18):
    NESTED = [NESTED, NESTED]


class Runs:
    def __reduce__(self) -> Any:
        return (print, ("it ran",))


@pytest.mark.parametrize(
    ("data", "word"),
    [
        (pickle.dumps({"version": "2.10", "entries": [Runs()]}), "could run code"),
        (dump([entry(1)], WORLD)[:-20], "ends or breaks off"),
        (b"<html>404</html>", "not a flight recorder dump"),
        (b"", "not a flight recorder dump"),
        (b'{"version": ', "not a flight recorder dump"),
        (b"{" + b'"a":{' * 100_000, "not a flight recorder dump"),
        (pickle.dumps([1, 2]), "found other data"),
        (pickle.dumps({"version": 1, "entries": [{"process_group": 3}]}), "another shape"),
        (pickle.dumps({"version": 1, "entries": 7}), "another shape"),
        (json.dumps(ENTRY).replace('"p2p_seq_id": 0', '"collective_seq_id": 1e999').encode(), "another shape"),
        (pickle.dumps({"version": 1, "entries": [entry(1) | {"profiling_name": NESTED}]}), "expected text, found list"),
        (pickle.dumps({"version": 1, "entries": [entry(1) | {"input_dtypes": [NESTED]}]}), "expected text, found list"),
        (pickle.dumps({"version": 1, "entries": [], "pg_config": {"0": {"ranks": NESTED}}}), "expected text, found"),
        (pickle.dumps({"version": 1, "entries": [], "pg_config": [3]}), "another shape"),
    ],
)
def test_what_is_no_dump_gives_one_sentence(data, word, capsys):
    with pytest.raises(AttachError, match=word) as caught:
        parse(data, "some.pickle")
    assert str(caught.value).startswith("some.pickle: ")
    assert "it ran" not in capsys.readouterr().out


def test_files_are_found_by_their_rank(tmp_path: Path):
    for rank in (0, 10):
        (tmp_path / f"nccl_trace_rank_{rank}").write_bytes(dump([], WORLD))
    (tmp_path / "notes.txt").write_text("")
    (tmp_path / "other.json").write_text("")
    assert sorted(find_dumps(tmp_path)) == [0, 10]
    assert sorted(find_dumps(tmp_path / "nccl_trace_rank_")) == [0, 10]
    (tmp_path / "again_10.pickle").write_bytes(b"")
    with pytest.raises(AttachError, match="one dump of each rank"):
        find_dumps(tmp_path)
    with pytest.raises(AttachError, match="found none"):
        find_dumps(tmp_path / "nothing")
    assert flight_recorder.read(tmp_path / "nccl_trace_rank_0").records == ()
