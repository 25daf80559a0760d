"""Pages of answers: never too large, every record once, numbers whole, text escaped."""

from __future__ import annotations

import json
from typing import Any

import pytest
from agents.made_traces import HOSTILE, UNSEEN
from hypothesis import given
from hypothesis import strategies as st

from torchtriage.agents.answers import LEAST_BYTES, UNTRUSTED, Answer, Pages, one_page, shown
from torchtriage.core.errors import UsageError

TEXT = st.text(max_size=400) | st.sampled_from(HOSTILE)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**62), 2**62) | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=12) | st.dictionaries(TEXT, inner, max_size=12),
    max_leaves=40,
)
RECORDS = st.lists(
    st.builds(
        lambda number, value, name: {"kind": "row", "number": number, "name": name, UNTRUSTED: value},
        st.integers(0, 10**9),
        VALUES,
        st.text(max_size=60),
    ),
    max_size=30,
)


def all_pages(pages: Pages, answer: Answer) -> list[str]:
    out = [pages.first(answer, "asked")]
    while (cursor := json.loads(out[-1])["next"]) is not None:
        out.append(pages.further(cursor, "asked"))
    return out


def numbers(value: Any) -> list[str]:
    """Return every number of a document as it is printed."""
    found: list[str] = []
    json.loads(json.dumps(value), parse_float=found.append, parse_int=found.append)
    return found


@given(RECORDS, st.sampled_from([LEAST_BYTES, 1500, 4096, 20_000]))
def test_no_page_is_too_large_and_every_record_is_on_one(records: list[Any], max_bytes: int) -> None:
    for number, record in enumerate(records):
        record["id"] = f"R{number}"
    texts = all_pages(Pages(max_bytes), Answer("tables", "x" * 500, records, "more"))
    assert max(len(text.encode()) for text in texts) <= max_bytes
    seen = [record for text in texts for record in json.loads(text)["records"]]
    assert [record["id"] for record in seen] == [f"R{number}" for number in range(len(records))]
    for record, given_ in zip(seen, records, strict=True):
        assert set(numbers(record)) <= set(numbers(given_)), "a number was cut or made up"


@pytest.mark.parametrize("text", HOSTILE)
def test_nothing_unseen_arrives_and_nothing_long(text: str) -> None:
    assert not set(shown(text)) & set(UNSEEN)
    for record in ({UNTRUSTED: text}, {UNTRUSTED: {text: [text, {"deep": text}]}}):
        (page,) = all_pages(Pages(), Answer("analyze", text, [record]))
        assert page.isprintable()
        assert not set(page) & set(UNSEEN)
        assert json.loads(page)["next"] is None
        assert len(json.loads(page)["records"]) == 1, "text cannot end a record"


def test_shortened_text_says_so_and_our_own_keeps_its_lines() -> None:
    record = {"fix": "a = 1\nb = 2", UNTRUSTED: {"name": "k" * 5000, "rows": [*range(500)]}}
    (page,) = all_pages(Pages(), Answer("explain", "t", [record]))
    (seen,) = json.loads(page)["records"]
    assert seen["fix"] == "a = 1\nb = 2"
    assert "characters left out]" in seen[UNTRUSTED]["name"]
    assert seen[UNTRUSTED]["rows"][-1] == "…[436 more left out]"
    assert seen[UNTRUSTED]["rows"][:-1] == [*range(64)]


def test_two_long_names_that_are_shortened_alike_stay_two() -> None:
    names = {"a" * 900 + tail + "b" * 900: number for number, tail in enumerate("xy")}
    (page,) = all_pages(Pages(), Answer("explain", "t", [{UNTRUSTED: names}]))
    assert sorted(json.loads(page)["records"][0][UNTRUSTED].values()) == [0, 1]


def test_a_record_that_fits_nowhere_says_so() -> None:
    wide = {"kind": "row", "id": "r.1", **{f"field{number}": number for number in range(1000)}}
    texts = all_pages(Pages(), Answer("tables", "t", [wide, {"id": "r.2"}]))
    first, second = [record for text in texts for record in json.loads(text)["records"]]
    assert first == {"kind": "row", "id": "r.1", "left_out": "does not fit into 4096 bytes: serve with --max-bytes"}
    assert second == {"id": "r.2"}


def test_a_cursor_is_of_one_request() -> None:
    pages = Pages(LEAST_BYTES)
    cursor = json.loads(pages.first(Answer("tables", "t", [{"text": "x" * 300}] * 9), "asked"))["next"]
    assert json.loads(pages.further(cursor, "asked"))["records"]
    for odd, asked in ((cursor, "other"), ("a9:1", "asked"), ("a1:0", "asked"), ("a1:99", "asked"), ("", "asked")):
        with pytest.raises(UsageError, match="cursor"):
            pages.further(odd, asked)


def test_only_the_latest_answers_are_kept() -> None:
    pages = Pages(LEAST_BYTES)
    cursors = [
        json.loads(pages.first(Answer("tables", "t", [{"text": "x" * 300}] * 9), number))["next"]
        for number in range(40)
    ]
    assert pages.further(cursors[-1], 39)
    with pytest.raises(UsageError, match="ask again without next"):
        pages.further(cursors[0], 0)


def test_an_error_is_one_page_whatever_it_quotes() -> None:
    for text in HOSTILE:
        page = one_page({"tool": "run", "error": "UsageError", UNTRUSTED: {"message": [text] * 100}}, LEAST_BYTES)
        assert len(page.encode()) <= LEAST_BYTES
        assert page.isprintable()
        assert json.loads(page)["error"] == "UsageError"


@pytest.mark.parametrize("path", ["jobs/" + "run-2024/" * 30 + "trace.json.gz", "übung/" * 30])
def test_an_input_can_be_asked_about_again(path: str) -> None:
    (page,) = all_pages(Pages(), Answer("analyze", path, []))
    assert json.loads(page)["input"] == path


@given(TEXT, st.sampled_from([LEAST_BYTES, 4096]))
def test_no_input_takes_the_place_of_the_answer(text: str, max_bytes: int) -> None:
    (page,) = all_pages(Pages(max_bytes), Answer("analyze", text * 20, [{"kind": "row", "id": "r.1", "n": 1}]))
    assert len(page.encode()) <= max_bytes
    assert json.loads(page)["records"] == [{"kind": "row", "id": "r.1", "n": 1}]


def test_pages_that_could_hold_nothing_are_refused() -> None:
    with pytest.raises(UsageError, match="1024"):
        Pages(100)
