"""Why a function was compiled again: the guard that failed, taken apart."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from torchtriage.compile.logs.locations import parse_traceback
from torchtriage.core.finding import Frame

__all__ = ["Cause", "GuardFailure", "parse_failures"]

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
_USER = re.compile(r"\nUser stack trace:\n")
_COMMENT = re.compile(
    r"\s+# (?:(?P<code>.*?)\s+# )?(?P<file>[^\s#]+):(?P<line>\d+) in (?P<name>\S+)(?P<rest>.*)$", re.DOTALL
)
_HINT = re.compile(r"\s*\((?:HINT: )?(?P<hint>[^()]*(?:\([^()]*\)[^()]*)*)\)", re.DOTALL)
_LOCAL = re.compile(r"\bL\['(\w+)'\]")
_TENSOR = (
    (
        "size",
        re.compile(
            r"tensor '(?P<source>.+?)' size mismatch at index (?P<dim>\d+)\. expected (?P<was>[^,]+),"
            r" actual (?P<now>\S+)"
        ),
    ),
    (
        "stride",
        re.compile(
            r"tensor '(?P<source>.+?)' stride mismatch at index (?P<dim>\d+)\. expected (?P<was>[^,]+),"
            r" actual (?P<now>\S+)"
        ),
    ),
    ("dtype", re.compile(r"tensor '(?P<source>.+?)' dtype mismatch\. expected (?P<was>[^,]+), actual (?P<now>\S+)")),
    ("rank", re.compile(r"tensor '(?P<source>.+?)' rank mismatch\. expected (?P<was>[^,]+), actual (?P<now>\S+)")),
    (
        "requires grad",
        re.compile(r"tensor '(?P<source>.+?)' requires_grad mismatch\. expected requires_grad=(?P<was>\d+)"),
    ),
    (
        "dispatch keys",
        re.compile(
            r"tensor '(?P<source>.+?)' dispatch key set mismatch\. expected (?P<was>.+?), actual"
            r" (?P<now>.+)$"
        ),
    ),
    ("device", re.compile(r"tensor '(?P<source>.+?)' [Tt]ensor device")),
    ("type", re.compile(r"expected type of '(?P<source>.+?)' to be (?P<was>.+?),? '? ?but found (?P<now>.+)$")),
)
_VALUE = re.compile(r"^(?P<source>.+?) (?:==|is) (?P<value>[^=]+?)$", re.DOTALL)
_CALLED = re.compile(r"^(?:len|type|id)\(|^___(?!stack\d)")
_NUMBER = re.compile(r"^-?(?:\d[\d_]*(?:\.\d*)?(?:[eE][-+]?\d+)?|inf|nan|float\('\w+'\))$")
_OTHERS = (
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
    where the log does not tell. ``guard`` : the guard's text. ``frame`` : the line of the user's code that made it
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


def parse_failures(text: str) -> list[GuardFailure]:
    """Return the failures of one cached graph, of which a reason may name several."""
    entry = _ENTRY.match(text.strip())
    graph, rest = (entry["id"], entry["rest"]) if entry else ("", text.strip())
    told = _USER.split(rest, maxsplit=1)
    stack = parse_traceback(told[1]) if len(told) > 1 else ()
    return [_failure(graph, told[0].strip()[:_MAX_GUARD], stack)]


def _failure(graph: str, text: str, stack: tuple[Frame, ...]) -> GuardFailure:
    guard, code, hint = text, "", ""
    frame = stack[0] if stack else None
    noted = _COMMENT.search(text)
    if noted is not None:
        guard, code = text[: noted.start()].strip(), noted["code"] or ""
        said = _HINT.match(noted["rest"])
        hint = said["hint"] if said else ""
        if frame is None:
            frame = Frame(noted["file"], int(noted["line"][:9]), noted["name"], True)
    elif (at := text.find(" (HINT: ")) >= 0:
        guard, hint = text[:at].strip(), text[at + len(" (HINT: ") :].rstrip(") \n")
    cause, source, dim, was, now = _class(guard)
    return GuardFailure(
        graph, cause, _plain(source), dim, was, now, guard, " ".join(code.split()), frame, " ".join(hint.split())
    )


def _plain(source: str) -> str:
    return _LOCAL.sub(r"\1", source)


def _class(guard: str) -> tuple[Cause, str, int, str, str]:
    for name, pattern in _TENSOR:
        found = pattern.search(guard)
        if found is not None:
            parts = found.groupdict()
            was, now = parts.get("was") or "", (parts.get("now") or "").rstrip(".")
            if name == "requires grad":
                was, now = ("True", "False") if was == "1" else ("False", "True")
            return name, parts["source"], int(parts.get("dim") or -1), was, now  # type: ignore[return-value]
    value = _VALUE.match(guard)
    if value is not None and not _CALLED.match(guard):
        source, told = value["source"].strip(), value["value"].strip()
        if ".size()[" not in source and ".stride()[" not in source and " " not in source:
            if source.endswith((".training", "['training']")):
                return "training mode", source, -1, told, "False" if told == "True" else "True"
            if "CURRENT_DEVICE" not in source:
                if _NUMBER.match(told):
                    return "number", source, -1, told, ""
                if told in ("True", "False"):
                    return "flag", source, -1, told, "False" if told == "True" else "True"
                if told[:1] in "'\"":
                    return "text", source, -1, told, ""
                if told == "None":
                    return "none", source, -1, told, ""
    for name, pattern in _OTHERS:
        found = pattern.search(guard)
        if found is not None:
            source = (found.groupdict().get("source") or "").strip()
            if name == "length":
                length = re.match(r"^(?:not )?len\((?P<source>.+)\)(?: == (?P<was>\d+))?", guard)
                if length is not None:
                    return "length", length["source"], -1, length["was"] or "", ""
            if name == "shape guard":
                source = guard
            if name == "global state":
                changed = re.search(r"changed: (\w+)", guard)
                source = changed[1] if changed else ""
            return name, source, -1, "", ""  # type: ignore[return-value]
    return "other", "", -1, "", ""
