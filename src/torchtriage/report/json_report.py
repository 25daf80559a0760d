"""The versioned JSON document, and back: everything else can be made from it again.

The dataclasses of ``diagnose/verdict/result.py`` are the document. A reader of ``torchtriage/1`` must ignore
fields it does not know: new ones may be added, none is renamed, removed or given another meaning
without a new schema name.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec

from torchtriage.core.errors import TraceFormatError
from torchtriage.core.timing import PartTime
from torchtriage.diagnose.ranks.result import JobResult
from torchtriage.diagnose.verdict.result import SCHEMA, Result

if TYPE_CHECKING:
    from torchtriage.report.blocks import Document

T = TypeVar("T")

SCHEMA_ID = "https://json-schema.org/draft/2020-12/schema"


@dataclass(frozen=True)
class Format(Generic[T]):
    """A dataclass as a versioned JSON document: written, read back and described; and how it is shown to people.

    ``name`` : what its field ``schema`` holds, and a reader looks for first. ``title`` : of the
    published schema. A reader that finds something else says that it expected ``what``, which
    ``command`` writes. ``document`` : takes the value, and what its command's options say of it.
    """

    kind: type[T]
    document: Callable[..., Document]
    name: str
    title: str
    what: str
    command: str

    def encode(self, value: T) -> bytes:
        """Return the document as UTF-8, one line, ending in a newline; equal values, equal bytes.

        Raises ValueError: a field other than evidence holds a number that is not finite, which JSON
        cannot say.
        """
        return msgspec.json.encode(plain(value)) + b"\n"

    def decode(self, data: bytes) -> T:
        """Return the value of a document that ``encode`` made, in this version or another.

        Raises TraceFormatError: ``data`` is no such document, or one of another schema.
        """
        try:
            head = msgspec.json.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise TraceFormatError(
                f"expected {self.what}, found no JSON: {error}", hint=f"write one with: {self.command}"
            ) from None
        name = head.get("schema") if isinstance(head, dict) else None
        if name != self.name:
            shown = "none" if name is None else repr(name)[:80]
            raise TraceFormatError(
                f'expected {self.what} with schema "{self.name}", found {shown}',
                where="$.schema",
                hint=f"write one with: {self.command}",
            )
        try:
            return msgspec.convert(head, self.kind)
        except msgspec.ValidationError as error:
            raise TraceFormatError(
                f"the result file does not follow {self.name}: {error}", hint=f"write it again with: {self.command}"
            ) from None

    def schema(self) -> dict[str, Any]:
        """Return the JSON Schema (draft 2020-12), generated from the dataclasses."""
        return schema_of(self.kind, self.name, f"{self.title}, {self.name}")


@dataclass(frozen=True)
class JsonReport:
    """One run of torchtriage over one or more traces."""

    schema: str
    version: str
    results: tuple[Result, ...]
    jobs: tuple[JobResult, ...] = ()
    """Several ranks of one job together; their own results stay among ``results``."""
    timing: tuple[PartTime, ...] = field(default=(), metadata={"asked": True})
    """Where the time of this run went, the longest part first; there with ``--timing`` alone."""

    @classmethod
    def of(
        cls, results: Sequence[Result], jobs: Sequence[JobResult] = (), timing: Sequence[PartTime] = ()
    ) -> JsonReport:
        """Return the report of these results."""
        return cls(SCHEMA, results[0].version if results else "", tuple(results), tuple(jobs), tuple(timing))


def _document(report: JsonReport, **options: Any) -> Document:
    from torchtriage.report.documents import trace  # a result written as JSON is not drawn

    return trace.document(report.results, report.jobs, **options)


TRACES = Format(
    JsonReport,
    _document,
    SCHEMA,
    title="Result of torchtriage",
    what="a torchtriage result",
    command="torchtriage analyze TRACE --json",
)
schema = TRACES.schema


read = TRACES.decode
"""Return a document that ``encode`` made, by this version or another."""


def encode(results: Sequence[Result], jobs: Sequence[JobResult] = ()) -> bytes:
    """Return the document as UTF-8, one line, ending in a newline.

    Keys come in the order of the dataclasses and of the results' own tables, so equal runs give
    equal bytes. A number that is not finite becomes ``null`` inside ``evidence``.

    Raises ValueError: a field other than evidence holds a number that is not finite, which JSON
    cannot say.
    """
    return TRACES.encode(JsonReport.of(results, jobs))


def decode(data: bytes) -> list[Result]:
    """Return the results of a document that ``encode`` made; see :func:`read`."""
    return list(read(data).results)


def schema_of(kind: type, name: str, title: str) -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of a dataclass whose documents name ``name``."""
    generated = plain(msgspec.json.schema(kind))
    definitions = generated["$defs"]
    for definition in definitions.values():
        # Python 3.13 and later strip a docstring's indentation, earlier ones keep it
        definition["description"] = inspect.cleandoc(definition["description"])
        for part in definition.get("properties", {}).values():
            # msgspec 0.23 and later write these two as well
            part.pop("propertyNames", None)
            if part.get("default") == {}:
                del part["default"]
    definitions[kind.__name__]["properties"]["schema"] = {"const": name}
    return {
        "$schema": SCHEMA_ID,
        "title": title,
        "$ref": generated["$ref"],
        "$defs": {name: definitions[name] for name in sorted(definitions)},
    }


def schema_name(data: bytes) -> str:
    """Return what a document says it follows, empty where it says nothing."""

    class Head(msgspec.Struct):
        schema: str = ""

    try:
        return msgspec.json.decode(data, type=Head).schema
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ""  # the reader says what is wrong


def plain(value: Any, where: str = "$", *, strict: bool = True) -> Any:
    """Return ``value`` as dicts, lists, text, finite numbers and None; UTF-8 can hold its text.

    Dataclasses become dicts in field order, without empty fields that somebody has to ask for; sets become sorted
    lists, numpy scalars and arrays become what they hold. With ``strict`` off, numbers that are not finite become None.
    """
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        # a path may hold bytes that were no UTF-8 (surrogateescape)
        return value.encode("utf-8", "backslashreplace").decode() if not value.isascii() else value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        if math.isfinite(value):
            return float(value)
        if strict:
            raise ValueError(f"{where} is {value}, expected a finite number")
        return None
    if isinstance(value, dict):
        return {plain(str(key)): plain(item, f"{where}.{key}", strict=strict) for key, item in value.items()}
    if isinstance(value, set | frozenset):
        return sorted((plain(item, where, strict=strict) for item in value), key=repr)
    if isinstance(value, list | tuple):
        return [plain(item, f"{where}[{index}]", strict=strict) for index, item in enumerate(value)]
    if dataclasses.is_dataclass(value):
        return {
            field.name: plain(
                getattr(value, field.name), f"{where}.{field.name}", strict=strict and field.name != "evidence"
            )
            for field in dataclasses.fields(value)
            if "asked" not in field.metadata or getattr(value, field.name)
        }
    if hasattr(value, "tolist"):
        return plain(value.tolist(), where, strict=strict)
    return str(value)
