"""Why a function was compiled again: the guard that failed, taken apart."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from torchtriage.compile.logs.locations import parse_traceback
from torchtriage.core.finding import Frame

Cause = Literal[
    "size",
    "stride",
    "dtype",
    "rank",
    "requires grad",
    "dispatch keys",
    "device",
    "shape guard",
    "length",
    "number",
    "flag",
    "text",
    "none",
    "training mode",
    "object",
    "type",
    "keys",
    "global state",
    "aliasing",
    "backend",
    "mode stack",
    "attribute",
    "other",
]

_MAX_GUARD = 4_096
"""Characters of a guard that are read: a longer one is no text for people."""
_ENTRY = re.compile(r"^(?P<id>(?:!?\d+/)?\d+/\d+): (?P<rest>.*)$", re.DOTALL)
_NOTED = re.compile(r"\s# (?P<file>[^\s#]+):(?P<line>\d+) in (?P<name>\S+)")
_COMMENT = re.compile(r"\s# ")
_HINT = re.compile(r"\s*\((?:HINT: )?(?P<hint>[^()]*(?:\([^()]*\)[^()]*)*)\)", re.DOTALL)
_LOCAL = re.compile(r"\bL\['(\w+)'\]")
_EXPECTED = r"expected (?P<was>[^,]+), actual (?P<now>\S+)"
_TENSOR_TEXTS: tuple[tuple[Cause, str], ...] = (
    ("size", rf"tensor '(?P<source>.+?)' size mismatch at index (?P<dim>\d+)\. {_EXPECTED}"),
    ("stride", rf"tensor '(?P<source>.+?)' stride mismatch at index (?P<dim>\d+)\. {_EXPECTED}"),
    ("dtype", rf"tensor '(?P<source>.+?)' dtype mismatch\. {_EXPECTED}"),
    ("rank", rf"tensor '(?P<source>.+?)' rank mismatch\. {_EXPECTED}"),
    ("requires grad", r"tensor '(?P<source>.+?)' requires_grad mismatch\. expected requires_grad=(?P<was>\d+)"),
    (
        "dispatch keys",
        r"tensor '(?P<source>.+?)' dispatch key set mismatch\. expected (?P<was>.+?), actual (?P<now>.+)$",
    ),
    ("device", r"tensor '(?P<source>.+?)' [Tt]ensor device"),
    ("type", r"expected type of '(?P<source>.+?)' to be (?P<was>.+?),? '? ?but found (?P<now>.+)$"),
)
TENSOR_CAUSES = frozenset(cause for cause, _ in _TENSOR_TEXTS)
_TENSOR = tuple((cause, re.compile(text)) for cause, text in _TENSOR_TEXTS)
_VALUE = re.compile(r"^(?P<source>.+?) (?:==|is) (?P<value>[^=]+?)$", re.DOTALL)
_CALLED = re.compile(r"^(?:len|type|id)\(|^___(?!stack\d)")
_NUMBER = re.compile(r"^-?(?:\d[\d_]*(?:\.\d*)?(?:[eE][-+]?\d+)?|inf|nan|float\('\w+'\))$")
_LENGTH = re.compile(r"^(?:not )?len\((?P<source>.+)\)(?: == (?P<was>\d+))?")
_OTHERS: tuple[tuple[Cause, re.Pattern[str]], ...] = (
    ("aliasing", re.compile(r"Duplicate tensor|tensor aliasing|overlap", re.IGNORECASE)),
    ("backend", re.compile(r"BACKEND_MATCH|backend")),
    ("global state", re.compile(r"GLOBAL_STATE|___check_global_state|DEFAULT_DEVICE|CURRENT_DEVICE")),
    ("mode stack", re.compile(r"torch_function_mode_stack|torch function mode")),
    ("shape guard", re.compile(r"\.size\(\)\[|\.stride\(\)\[|\.storage_offset\(\)|\b(?:Eq|Ne|Mod)\(")),
    ("length", re.compile(r"^(?:not )?len\(|list length|LENGTH_CHECK")),
    ("object", re.compile(r"___check_obj_id\((?P<source>.+?), \d+\)|^id\(| is not .*object")),
    ("type", re.compile(r"___check_type_id\((?P<source>.+?), \d+\)|type\(.*\) ==")),
    ("keys", re.compile(r"___dict_|\.keys\(\)|__contains__| in .*dict|DICT_")),
    ("attribute", re.compile(r"hasattr\((?P<source>.+?)\)")),
)


@dataclass(frozen=True)
class GuardFailure:
    """One guard of one cached graph that did not hold.

    ``graph`` : compile id of the cached graph. ``cause`` : the class of guard. ``source`` : what it looked at, as
    the user wrote it. ``dim`` : of a tensor; -1 elsewhere. ``was``/``now`` : what it expected and what came, empty
    where the log does not say. ``guard`` : the guard's text. ``frame`` : the line of the user's code that made it
    a guard, None where not told.
    """

    graph: str
    cause: Cause
    source: str
    dim: int
    was: str
    now: str
    guard: str
    code: str
    frame: Frame | None
    hint: str

    @property
    def key(self) -> tuple[str, str, int]:
        """Return what failures of one kind share, whatever the values."""
        source = self.source or re.sub(r"-?\d+(?:\.\d+)?", "#", self.guard)
        return self.cause, source, self.dim


def parse_failure(text: str) -> GuardFailure:
    """Return the failure of one cached graph, as a reason words it."""
    entry = _ENTRY.match(text.strip())
    graph, rest = (entry["id"], entry["rest"]) if entry else ("", text.strip())
    text, _, traceback = rest.partition("\nUser stack trace:\n")
    text = text.strip()[:_MAX_GUARD]
    guard, code, hint = text, "", ""
    frame = next(iter(parse_traceback(traceback)), None)
    noted = _NOTED.search(text)
    if noted is not None:
        guard, *codes = _COMMENT.split(text[: noted.start()], maxsplit=1)
        guard, code = guard.strip(), "".join(codes)
        hinted = _HINT.match(text, noted.end())
        hint = hinted["hint"] if hinted else ""
        if frame is None:
            frame = Frame(noted["file"], int(noted["line"][:9]), noted["name"], True)
    elif (at := text.find(" (HINT: ")) >= 0:
        guard, hint = text[:at].strip(), text[at + len(" (HINT: ") :].rstrip(") \n")
    cause, source, dim, was, now = _class(guard)
    return GuardFailure(
        graph, cause, as_written(source), dim, was, now, guard, " ".join(code.split()), frame, " ".join(hint.split())
    )


def as_written(source: str) -> str:
    """Return what a guard looks at as the user wrote it: ``x`` for ``L['x']``."""
    return _LOCAL.sub(r"\1", source)


def _class(guard: str) -> tuple[Cause, str, int, str, str]:
    """Return cause, source, dimension, and the values before and now."""
    for cause, pattern in _TENSOR:
        match = pattern.search(guard)
        if match is not None:
            parts = match.groupdict()
            was, now = parts.get("was") or "", (parts.get("now") or "").rstrip(".")
            if cause == "requires grad":
                was, now = ("True", "False") if was == "1" else ("False", "True")
            return cause, parts["source"], int(parts.get("dim") or -1), was, now
    return _of_value(guard) or _of_expression(guard)


def _of_value(guard: str) -> tuple[Cause, str, int, str, str] | None:
    """Return the class of a guard on a plain value: ``x == 3``."""
    match = _VALUE.match(guard)
    if match is None or _CALLED.match(guard):
        return None
    source, value = match["source"].strip(), match["value"].strip()
    if ".size()[" in source or ".stride()[" in source or " " in source:
        return None
    opposite = "False" if value == "True" else "True"
    if source.endswith((".training", "['training']")):
        return "training mode", source, -1, value, opposite
    if "CURRENT_DEVICE" in source:
        return None
    if _NUMBER.match(value):
        return "number", source, -1, value, ""
    if value in ("True", "False"):
        return "flag", source, -1, value, opposite
    if value[:1] in "'\"":
        return "text", source, -1, value, ""
    return ("none", source, -1, value, "") if value == "None" else None


def _of_expression(guard: str) -> tuple[Cause, str, int, str, str]:
    for cause, pattern in _OTHERS:
        match = pattern.search(guard)
        if match is None:
            continue
        source = (match.groupdict().get("source") or "").strip()
        if cause == "length" and (length := _LENGTH.match(guard)):
            return cause, length["source"], -1, length["was"] or "", ""
        if cause == "shape guard":
            source = guard
        elif cause == "global state":
            changed = re.search(r"changed: (\w+)", guard)
            source = changed[1] if changed else ""
        return cause, source, -1, "", ""
    return "other", "", -1, "", ""
