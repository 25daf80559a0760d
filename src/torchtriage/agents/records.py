"""The documents of the command line as records for agents: the same values, in parts that can be paged.

Documents are what ``--json`` prints, decoded. A record's own fields are torchtriage's words and numbers; what may hold
text of the recording stands below ``untrusted``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

from torchtriage.agents.answers import UNTRUSTED, Record
from torchtriage.api.catalogue import Page, lookup, pages
from torchtriage.core.errors import UsageError
from torchtriage.core.names import word_list

Document = dict[str, Any]

TABLES = word_list("""
    device_time serving bus_bandwidth step_account run_account devices ranks collectives process_groups steps kernels
    operators
""")
COST = ("low_ms", "high_ms", "per", "of_ms", "share_low", "share_high", "basis", "grade", "together_ms")
_TRIAL = ("outcome", "per", "before_ms", "after_ms", "ratio", "ratio_low", "ratio_high", "saved_ms", "answers")
_PATCH_LINES = 20
"""Of one record: a patch is put together from its records, line by line."""
_FINDING = ("code", "name", "severity", "certainty")


def analysis(document: Document) -> list[Record]:
    """Return verdicts and findings of each trace, or job where several are its ranks; the largest saving first."""
    return [record for prefix, subject in _subjects(document) for record in _subject(prefix, subject)]


def recording_quality(document: Document) -> list[Record]:
    """Return what each recording can and cannot answer."""
    out: list[Record] = []
    for prefix, subject in _subjects(document):
        facts = subject.get("trace") or {}
        recording = {
            "kind": "recording",
            "id": f"{prefix}recording",
            "refused": subject["refused"],
            **{
                name: facts[name]
                for name in ("tier", "size_bytes", "n_events", "n_lost", "n_repaired")
                if name in facts
            },
            "checked": len(subject["checked"]),
            UNTRUSTED: {
                "verdict": subject["verdict"],
                **{name: facts[name] for name in ("path", "vendor", "device_names", "loss") if facts.get(name)},
            },
        }
        out += [recording, *_notes(prefix, subject["notes"]), *_unanswered(prefix, subject)]
    return out


def tables(document: Document, only: str = "") -> list[Record]:
    """Return the tables of each trace or job, row by row.

    Raises UsageError: no table is called ``only``.
    """
    if only and only not in TABLES:
        raise UsageError(f"expected a table out of {', '.join(TABLES)}, found {only!r}")
    out: list[Record] = []
    for prefix, subject in _subjects(document):
        for name, head, rows in _tables(subject):
            if only and only != name.partition("/")[0]:
                continue
            out.append({"kind": "table", "id": f"{prefix}{name}", "rows": len(rows), UNTRUSTED: head})
            out += [{"kind": "row", "id": f"{prefix}{name}.{n}", UNTRUSTED: row} for n, row in enumerate(rows, 1)]
    return out or [{"kind": "no table", "why": f"the recording has no data for {only or 'any table'}; ask doctor"}]


def answers(document: Document) -> list[Record]:
    """Return what changes would save, question by question."""
    return [
        {
            "kind": "answer",
            "id": f"{prefix}A{number}",
            **{name: value for name, value in answer.items() if name != "question"},
            UNTRUSTED: {"question": answer["question"]},
        }
        for prefix, subject in _subjects(document)
        for number, answer in enumerate(subject["what_ifs"], 1)
    ]


def explained_code(code: str) -> list[Record]:
    """Return the pages of a code or name.

    Raises UsageError: there is none.
    """
    return [record for page in lookup(code) for record in _page(page)]


def explained_finding(document: Document, wanted: str) -> list[Record]:
    """Return all that is known of a finding, or one piece of its evidence, by id.

    Raises UsageError: the document has no such finding or evidence.
    """
    known: list[str] = []
    for prefix, subject in _subjects(document):
        for number, finding in enumerate(subject["findings"], 1):
            identity = _identity(prefix, number, finding)
            known.append(identity)
            pieces = _evidence(identity, finding)
            if wanted == identity:
                return [_finding(identity, finding, full=True), *pieces, *explained_code(finding["code"])]
            chosen = [piece for piece in pieces if piece["id"] == wanted]
            if chosen:
                return chosen
    raise UsageError(
        f"expected the id of a finding or of evidence in this input, found {wanted!r}",
        hint=f"its findings are {', '.join(known[:12])}" if known else "it has no findings",
    )


def comparison(document: Document) -> list[Record]:
    """Return what changed between two runs."""
    sides = {name: document[name] for name in ("verdict", "before", "after")}
    head = {"kind": "comparison", "comparable": document["comparable"], "total": document["total"], UNTRUSTED: sides}
    named = {
        kind: [{"name": name, **value} for name, value in document[key].items()]
        for kind, key in (("class", "classes"), ("split", "split"))
    }
    rows = {"reason": document["reasons"], "cause": document["causes"], "rank": document["ranks"], **named}
    return [head, *_changes(document), *_notes("", document["limits"]), *_rows(rows)]


def verification(document: Document) -> list[Record]:
    """Return what a fix on trial came to."""
    own = ("outcome", "allowed", "per", "before_ms", "after_ms", "ratio", "ratio_low", "ratio_high")
    saved = ("saved_ms", "saved_low_ms", "saved_high_ms", "told", "n_steps", "answers")
    head = {
        "kind": "verification",
        **{name: document[name] for name in own + saved},
        UNTRUSTED: {name: document[name] for name in ("verdict", "before", "after")},
    }
    return [head, *_changes(document), *_notes("", document["notes"]), *_rows({"round": document["rounds"]})]


def fix(document: Document) -> list[Record]:
    """Return the changes that were tried for a program's findings, and the patch of those that are proved."""
    together = document["together"]
    head = {
        "kind": "fixes",
        "proved": together is not None,
        "together": {name: together[name] for name in _TRIAL} if together else None,
        "applied": document["applied"],
        UNTRUSTED: {name: document[name] for name in ("verdict", "command", "effects")},
    }
    attempts = []
    for number, attempt in enumerate(document["attempts"], 1):
        known = {name: attempt[name] for name in ("code", "name", "edit", "outcome", "start_up_ms")}
        trial = attempt["trial"]
        measured = {name: trial[name] for name in _TRIAL} if trial else None
        text = {name: attempt[name] for name in ("what", "changes", "reason", "file", "line") if attempt[name]}
        identity = f"A{number}-{attempt['code']}"
        attempts.append(
            {
                "kind": "attempt",
                "id": identity,
                **known,
                "promise": _cost(attempt["promise"]),
                "trial": measured,
                UNTRUSTED: text,
            }
        )
    lines = document["patch"].split("\n")[:-1]
    patches = [
        {"kind": "patch", "id": f"P{number}", UNTRUSTED: {"lines": lines[first : first + _PATCH_LINES]}}
        for number, first in enumerate(range(0, len(lines), _PATCH_LINES), 1)
    ]
    return [head, *patches, *attempts, *_notes("", document["notes"]), *_rows({"unedited": document["unedited"]})]


def lint(document: Document) -> list[Record]:
    """Return what source alone shows, by file and line."""
    counts = {name: document[name] for name in document if name.startswith("n_")}
    findings = document["findings"]
    found = [_finding(f"F{n}-{item['code']}", item, full=False, cited=False) for n, item in enumerate(findings, 1)]
    for record, item in zip(found, findings, strict=True):
        record[UNTRUSTED]["evidence"] = item["evidence"]
    patches = [
        {
            "kind": "patch",
            "id": f"P{n}",
            "codes": patch["codes"],
            "safe_because": patch["safe_because"],
            UNTRUSTED: {"file": patch["file"], "diff": patch["diff"].split("\n")},
        }
        for n, patch in enumerate(document["patches"], 1)
    ]
    head = {"kind": "lint", "findings": len(found), "checked": len(document["checked"]), **counts}
    return [head, *found, *patches, *_rows({"odd": document["odd"], "unused": document["unused"]})]


# -- traces and jobs ---------------------------------------------------------------------------


def _subjects(document: Document) -> Iterator[tuple[str, Document]]:
    """Yield jobs and the traces that no job speaks for, each with what its ids begin with: nothing for a single one."""
    jobs = document["jobs"]
    spoken = {rank["path"] for job in jobs for rank in job["ranks"]}
    single = [result for result in document["results"] if result["trace"]["path"] not in spoken]
    several = len(jobs) + len(single) > 1
    for letter, subjects in (("J", jobs), ("T", single)):
        for number, subject in enumerate(subjects, 1):
            yield (f"{letter}{number}." if several else ""), subject


def _subject(prefix: str, subject: Document) -> Iterator[Record]:
    summary = subject.get("summary") or {}
    path = {"path": subject["trace"]["path"]} if "trace" in subject else {"basis": subject["basis"]}
    times = {"step_ms": subject.get("step_ms", summary.get("step_ms"))}
    if timed_ms := (subject.get("recorded") or {}).get("step_ms"):  # without the profiler
        times = {"step_ms": timed_ms, "recorded_step_ms": times["step_ms"]}
    yield {
        "kind": "verdict",
        "id": f"{prefix}verdict",
        "healthy": subject["healthy"],
        "refused": subject["refused"],
        **times,
        "joint_cost": _cost(subject["joint_cost"]),
        "findings": len(subject["findings"]),
        "not_checked": len(subject["not_checked"]),
        UNTRUSTED: {"verdict": subject["verdict"], **path},
    }
    for number, finding in enumerate(subject["findings"], 1):
        yield _finding(_identity(prefix, number, finding), finding, full=False)
    yield from _notes(prefix, [note for note in subject["notes"] if note["level"] != "info"])


def _identity(prefix: str, number: int, finding: Document) -> str:
    return f"{prefix}F{number}-{finding['code']}"


def _finding(identity: str, finding: Document, *, full: bool, cited: bool = True) -> Record:
    own = [page for page in pages() if page.code == finding["code"]]
    title, fix, place = finding["title"], finding["fix"], finding["place"]
    record: Record = {"kind": "finding", "id": identity, **{name: finding[name] for name in _FINDING}}
    untrusted: Record = {"message": finding["message"]}
    # a title or fix that was made for this recording may quote it
    (record if any(title == page.title for page in own) else untrusted)["title"] = title
    record["cost"] = finding["cost"] if full else _cost(finding["cost"])
    known = any(fix["text"] == page.fix.text and fix["code"] in ("", page.fix.code) for page in own)
    (record if known else untrusted)["fix"] = fix if full else fix["text"]
    if cited:
        record["evidence"] = [piece["id"] for piece in _evidence(identity, finding)]
    if full:
        record |= {name: finding[name] for name in ("family", "idle_ns", "n_events", "also_explains", "ranks")}
        untrusted["place"] = {name: value for name, value in place.items() if name != "examples"}
    else:
        untrusted["place"] = _frame(place)
    return {**record, UNTRUSTED: untrusted}


def _frame(place: Document) -> Any:
    frame = place["frame"]
    if frame is None:
        return place["module"] or None
    return {name: frame[name] for name in ("file", "line", "function", "exact")}


def _evidence(identity: str, finding: Document) -> list[Record]:
    examples = [("example", example) for example in finding["place"]["examples"]]
    return [
        {"kind": "evidence", "id": f"{identity}.E{number}", UNTRUSTED: {"name": name, "value": value}}
        for number, (name, value) in enumerate([*finding["evidence"].items(), *examples], 1)
    ]


def _cost(cost: Document | None) -> Document | None:
    return None if cost is None else {name: cost[name] for name in COST if cost[name] is not None}


def _notes(prefix: str, notes: Sequence[Document]) -> Iterator[Record]:
    for number, note in enumerate(notes, 1):
        text = {name: note[name] for name in ("message", "fix", "evidence") if note[name]}
        known = {"code": note["code"], "level": note["level"]}
        yield {"kind": "note", "id": f"{prefix}N{number}-{note['code']}", **known, UNTRUSTED: text}


def _unanswered(prefix: str, subject: Document) -> Iterator[Record]:
    """Yield what was not checked, and why; patterns that lack the same in one record."""

    def lacking(item: Document) -> tuple[tuple[str, ...], str]:
        return tuple(item["missing"]), item["how_to_record"]

    groups = groupby(sorted(subject["not_checked"], key=lacking), key=lacking)
    for number, ((missing, how), items) in enumerate(groups, 1):
        codes = [item["code"] for item in items]
        identity = f"{prefix}U{number}"
        yield {"kind": "not checked", "id": identity, "codes": codes, "missing": missing, "how_to_record": how}
    for crash in subject["crashes"]:
        yield {"kind": "crash", "code": crash["code"], UNTRUSTED: {"error": crash["error"]}}


def _tables(subject: Document) -> Iterator[tuple[str, Document, list[Document]]]:
    """Yield name, what is said of the whole, and rows; in the order of ``TABLES``."""

    def table(name: str, value: Document | None, rows: str) -> Iterator[tuple[str, Document, list[Document]]]:
        if value:
            yield name, {key: item for key, item in value.items() if key not in (rows, "flame", "lines")}, value[rows]

    recorded = subject.get("recorded") or {}
    summary = subject.get("summary") or subject
    for value in subject.get("device_time", ()):
        yield from table(f"device_time/{value['by']}", value, "rows")
    yield from table("serving", subject.get("serving"), "phases")
    yield from table("bus_bandwidth", subject.get("bus_bandwidth"), "rows")
    yield from table("step_account", recorded.get("account"), "parts")
    yield from table("run_account", recorded.get("run_account"), "parts")
    lists = (
        ("devices", "devices", ""),
        ("ranks", "ranks", ""),
        ("collectives", "collectives", ""),
        ("process_groups", "process_groups", ""),
        ("steps", "steps", ""),
        ("kernels", "top_kernels", "n_kernel_names"),
        ("operators", "top_ops", "n_op_names"),
    )
    for name, rows, number in lists:
        if summary.get(rows):
            yield name, {number: summary[number]} if number else {}, summary[rows]


# -- the rest ----------------------------------------------------------------------------------


def _page(page: Page) -> Iterator[Record]:
    known = {"code": page.code, "name": page.name, "title": page.title, "seen_in": page.part, "needs": page.needs}
    yield {"kind": "page", **known}
    for title in page.titles:
        yield {"kind": "section", "title": title, "text": page.section(title)}
    yield {"kind": "fix", "text": page.fix.text, "code": page.fix.code, "link": page.fix.link}


def _changes(document: Document) -> Iterator[Record]:
    """Yield the promise, and the findings of both sides."""
    if document["promise"]:
        yield {"kind": "promise", **document["promise"]}
    for number, change in enumerate(document["findings"], 1):
        own = {"status": change["status"], "code": change["code"]}
        costs = {name: _cost(change[name]) for name in ("before", "after")}
        text = {"title": change["title"], "place": change["place"]}
        yield {"kind": "finding", "id": f"C{number}-{change['code']}", **own, **costs, UNTRUSTED: text}


def _rows(groups: dict[str, list[Document]]) -> Iterator[Record]:
    for kind, rows in groups.items():
        for number, row in enumerate(rows, 1):
            yield {"kind": kind, "id": f"{kind}.{number}", UNTRUSTED: row}
