"""Exact lines: recordings and built traces against the source they came from."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from difflib import SequenceMatcher
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from builder import TraceBuilder

from torchtriage.core.finding import Frame
from torchtriage.core.source.locate import Locator
from torchtriage.core.trace import Kind, Trace, read_trace
from torchtriage.core.trace.frames import calls_of, parse_frame

DATA = Path(__file__).parent / "data"


@cache
def recorded() -> Trace:
    """A recording of ``source/data/calls.py``."""
    return read_trace(DATA / "calls.json.gz")


def row(trace: Trace, name: str, index: int = 0) -> int:
    return int(np.flatnonzero(trace.named(name))[index])


# -- a real recording, with the true line of every call ----------------------------------------


def outcomes() -> Counter[str]:
    """Compare what is found for every recorded call with the line ``sys.setprofile`` saw."""
    trace, locator = recorded(), Locator([DATA])
    truth = json.loads(gzip.decompress((DATA / "lines.json.gz").read_bytes()))
    frames = [member for member in trace.frames.members.tolist() if parse_frame(trace.name_of(member))]
    frames = [one for one in frames if trace.name_of(one).startswith("calls.py(")]
    names = [frame.function for one in frames if (frame := parse_frame(trace.name_of(one)))]
    matcher = SequenceMatcher(None, names, [name for name, *_ in truth], autojunk=False)
    found: Counter[str] = Counter()
    for start, other, length in matcher.get_matching_blocks():
        for index in range(length):
            one = frames[start + index]
            calls = [call for call in calls_of(trace, one, one).calls if call.kind != "op"]
            lines = truth[other + index][2]
            assert len(calls) == len(lines)
            for call, (name, line) in zip(calls, lines, strict=True):
                assert call.name == name or call.kind == "module"
                if call.name.startswith("__"):
                    continue  # constructors, and what Python calls by itself
                frame = locator._find(trace, one, call.row)
                if frame.exact:
                    found["exact" if frame.lines == (line,) else "wrong"] += 1
                else:
                    found["among" if line in frame.lines else "missed"] += 1
    return found


def test_no_line_is_wrong_and_most_are_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchtriage.core.source.locate.MAX_FRAMES", 10**6)
    found = outcomes()
    assert found.total() > 350
    assert found["wrong"] == found["missed"] == 0
    assert found["exact"] >= 0.95 * found.total()


def test_operators_end_at_their_line() -> None:
    trace, locator = recorded(), Locator([DATA])
    text = (DATA / "calls.py").read_text().split("\n")
    first = text.index("def operators(x, y):") + 1
    frame = row(trace, f"calls.py({first}): operators")
    calls = [call for call in calls_of(trace, frame, frame).calls if call.kind == "op"]
    found = {call.name: locator.stack(trace, call.row)[0] for call in calls}
    lines = {name: text[one.line - 1].strip() for name, one in found.items() if one.exact}
    assert lines["mul"] == "b = x * y"
    assert lines["sub"] == "c = a - b"
    assert lines["neg"] == "d = -c"
    assert lines["matmul"] == "f = d @ x"
    # either of two branches leaves the same trace
    assert [text[line - 1].strip() for line in found["item"].lines] == ["return float(f)", "return int(e)"]


def test_modules_are_named_as_their_attributes() -> None:
    trace, locator = recorded(), Locator([DATA])
    linear = np.flatnonzero(trace.named("aten::linear"))
    paths = [locator.module(trace, one) for one in linear.tolist()]
    paths = list(dict.fromkeys(path for path in paths if path))
    block = ("attention", "mlp.0", "mlp.2")
    expected = [f"encoder.layer.{index}.{one}" for index in range(3) for one in block]
    assert paths == [*expected, "encoder.head"]


def test_without_source_modules_keep_their_classes() -> None:
    trace = recorded()
    linear = int(np.flatnonzero(trace.named("aten::linear"))[0])
    for locator in (Locator([DATA.parent]),):
        path = locator.module(trace, linear)
        assert path.startswith("Model_")
        frame = locator.stack(trace, linear)[0]
        assert not frame.exact
        assert frame.lines == ()
        assert locator.notes() == ()


# -- built traces ------------------------------------------------------------------------------

SOURCE = """\
def train(loader):
    total = 0
    for x in loader:
        total += x.item()
        y = x.exp()
        total += y.item()
    return total
"""
ITEM = "<built-in method item of Tensor object at 0x7f>"
EXP = "<built-in method exp of Tensor object at 0x7f>"


def built(line: int = 1, calls: tuple[str, ...] = (ITEM, EXP, ITEM)) -> Trace:
    builder = TraceBuilder().frame(f"train.py({line}): train", 0, 100)
    for index, name in enumerate(calls):
        builder.frame(name, 10 + 20 * index, 15).op("aten::op", 12 + 20 * index, 5)
    return builder.build()


def stack(trace: Trace, root: Path, index: int) -> Frame:
    ops = np.flatnonzero(trace.kind == Kind.OP)
    return Locator([root]).stack(trace, int(ops[index]))[0]


def test_each_call_gets_its_own_line(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SOURCE)
    trace = built()
    frames = [stack(trace, tmp_path, index) for index in range(3)]
    assert frames == [
        Frame("train.py", 4, "train", exact=True, called="item", lines=(4,)),
        Frame("train.py", 5, "train", exact=True, called="exp", lines=(5,)),
        Frame("train.py", 6, "train", exact=True, called="item", lines=(6,)),
    ]


def test_a_doubtful_call_keeps_the_function_and_names_candidates(tmp_path: Path) -> None:
    text = "def train(x, c):\n    if c:\n        return x.item()\n    return x.item()\n"
    (tmp_path / "train.py").write_text(text)
    frame = stack(built(calls=(ITEM,)), tmp_path, 0)
    assert (frame.line, frame.exact, frame.lines) == (1, False, (3, 4))


def test_a_function_that_was_open_stands_on_its_current_line(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SOURCE)
    assert stack(built(line=5, calls=(ITEM, ITEM)), tmp_path, 0).line == 6
    assert stack(built(line=5, calls=(ITEM, ITEM)), tmp_path, 1).line == 4


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("\n\n\n\n" + SOURCE.replace("train", "fit"), "no function train starts at line 1"),
        ("print 'x'\n", "not Python 3"),
    ],
)
def test_another_version_of_the_source_is_not_believed(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "train.py").write_text(text)
    trace, locator = built(), Locator([tmp_path])
    op = int(np.flatnonzero(trace.kind == Kind.OP)[0])
    assert locator.stack(trace, op)[0] == Frame("train.py", 1, "train", called="item")
    (note,) = locator.notes()
    assert (note.code, note.level) == ("source-differs", "info")
    assert said in note.message


def test_a_missing_file_says_nothing(tmp_path: Path) -> None:
    trace, locator = built(), Locator([tmp_path])
    op = int(np.flatnonzero(trace.kind == Kind.OP)[0])
    assert locator.stack(trace, op)[0].lines == ()
    assert locator.notes() == ()


def test_the_line_a_graph_broke_at_stays(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SOURCE)
    name = "train.py(1): torch_dynamo_resume_in_train_at_5"
    trace = TraceBuilder().frame(name, 0, 100).frame(ITEM, 10, 15).op("aten::op", 12, 5).build()
    frame = stack(trace, tmp_path, 0)
    assert (frame.line, frame.exact, frame.lines) == (5, True, ())
