"""Several traces as one file: processes apart, times on one clock, and nothing lost."""

from __future__ import annotations

import json

from builder import TraceBuilder

from torchtriage.core.trace.joined import PROCESSES, Track, write_joined


def test_processes_stay_apart_and_times_meet(tmp_path):
    for number in (0, 1):
        builder = TraceBuilder().op("aten::mm", 100, 10)
        builder.events.append({"ph": "M", "name": "process_name", "pid": 100, "tid": 0, "args": {"name": "python"}})
        builder.events.append({"ph": "s", "id": 5, "pid": 100, "tid": 1, "ts": 100, "cat": "ac2g", "name": "ac2g"})
        builder.launch(20, 5, 30.5, 40)
        (tmp_path / f"{number}.json").write_text(json.dumps({"traceEvents": builder.events}))
    tracks = [
        Track(str(tmp_path / "0.json"), "rank 0", 0, {0: (1, "s")}, ()),
        Track(
            str(tmp_path / "1.json"), "rank 1", 1_690_000_000_123_456_789, {0: (1, "f")}, ({"ph": "X", "name": "own"},)
        ),
    ]
    write_joined(tracks, tmp_path / "out.json")
    text = (tmp_path / "out.json").read_text()
    assert '"ts":1690000000123556.789' in text
    events = json.loads(text)["traceEvents"]
    ops = [event for event in events if event["name"] == "aten::mm"]
    assert [event["pid"] // PROCESSES for event in ops] == [1, 2]
    names = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    # the device's process has no name of its own
    assert sorted(names.values()) == ["rank 0", "rank 0: python", "rank 1", "rank 1: python"]
    assert len({event["id"] for event in events if event["ph"] == "s" and event["cat"] == "ac2g"}) == 2
    begin, end = (event for event in events if event.get("cat") == "collective")
    assert (begin["ph"], end["ph"], begin["id"]) == ("s", "f", end["id"])
    assert (end["pid"], end["tid"], end["ts"]) == (ops[1]["pid"], ops[1]["tid"], ops[1]["ts"])
    assert [event for event in events if event["name"] == "own"]
