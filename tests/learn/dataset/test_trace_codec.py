"""A trace that was kept is read back the same, to the last number."""

from __future__ import annotations

import gzip
import json
import lzma
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchtriage.core.errors import TraceFormatError
from torchtriage.learn.dataset import trace_codec

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False),
    st.text(max_size=8),
    st.integers(0, 10**16).map(lambda one: one / 1000),
    st.just(-0.0),
    st.just(2**63),
)
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3), max_leaves=6)
NAMES = st.text(max_size=4)
EVENTS = st.dictionaries(NAMES, VALUES, max_size=5) | st.builds(
    lambda event, args: {**event, "args": args},
    st.dictionaries(st.sampled_from(("ph", "ts", "dur", "name")), VALUES, max_size=4),
    st.dictionaries(NAMES, VALUES, max_size=4) | VALUES,
)


@given(st.lists(EVENTS, max_size=12), st.dictionaries(NAMES, VALUES, max_size=3))
def test_any_document_comes_back(events: list[dict[str, Any]], beside: dict[str, Any]) -> None:
    beside.pop("traceEvents", None)
    document = {**beside, "traceEvents": events}
    back = json.loads(trace_codec.as_text(trace_codec.pack(document)))
    assert json.dumps(back) == json.dumps(document)  # also the order of keys, 1 and 1.0, -0.0


@pytest.mark.data
@pytest.mark.parametrize("name", ["cpu/cpu_only_rank34", "cv/alexnet_a100_small", "cv/vit_nsfw_mi300x_infer"])
def test_a_real_trace_comes_back_and_is_smaller_than_gzip(recordings: Path, name: str) -> None:
    raw = gzip.decompress((recordings / f"{name}.json.gz").read_bytes())
    document = json.loads(raw)
    packed = trace_codec.pack(document)
    assert json.dumps(json.loads(trace_codec.as_text(packed))) == json.dumps(document)
    assert len(packed) < 0.6 * len(gzip.compress(raw, 9))


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: b"{}",
        lambda data: data[:-20],
        lambda data: data[: len(data) // 2],
        lambda data: data.replace(b"ttcol", b"other"),
        lambda data: trace_codec.MAGIC + lzma.compress(b'{"types": [], "sizes": []}\x00'),
        lambda data: trace_codec.MAGIC + lzma.compress(b"[]\x00"),
        lambda data: trace_codec.MAGIC + lzma.compress(lzma.decompress(data[len(trace_codec.MAGIC) :])[:-40]),
    ],
    ids=["empty", "json", "cut", "half", "other", "no columns", "a list", "short columns"],
)
def test_a_damaged_file_is_refused(tmp_path: Path, damage: Any) -> None:
    path = tmp_path / "0001.ttcol"
    events = [{"ph": "X", "ts": at * 1.5, "dur": 0.25, "args": {"id": at}} for at in range(50)]
    path.write_bytes(damage(trace_codec.pack({"traceEvents": events})))
    for read in (trace_codec.read, trace_codec.read_text):
        with pytest.raises(TraceFormatError, match="expected a trace of the benchmark"):
            read(path)
