"""The versioned JSON document, and back: everything else can be made from it again.

The dataclasses of ``finding.py`` are the document. A reader of ``torchtriage/1`` must ignore
fields it does not know: new ones may be added, none is renamed, removed or given another meaning
without a new schema name.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from torchtriage.errors import TraceFormatError
from torchtriage.finding import SCHEMA, JobResult, Result

__all__ = ["Report", "decode", "encode", "parse", "plain", "read", "schema", "schema_of"]

Document = TypeVar("Document")

SCHEMA_ID = "https://json-schema.org/draft/2020-12/schema"


@dataclass(frozen=True)
class Report:
    """One run of torchtriage over one or more traces."""

    schema: str
    version: str
    results: tuple[Result, ...]
    jobs: tuple[JobResult, ...] = ()
    """Several ranks of one job together; their own results stay among ``results``."""


def encode(results: Sequence[Result], jobs: Sequence[JobResult] = ()) -> bytes:
    """Return the document as UTF-8, one line, ending in a newline.

    Keys come in the order of the dataclasses and of the results' own tables, so equal runs give
    equal bytes. A number that is not finite becomes ``null`` inside ``evidence``.

    Raises
    ------
    ValueError
        A field other than evidence holds a number that is not finite, which JSON cannot say.
    """
    version = results[0].version if results else ""
    return msgspec.json.encode(plain(Report(SCHEMA, version, tuple(results), tuple(jobs)))) + b"\n"


def decode(data: bytes) -> list[Result]:
    """Return the results of a document that ``encode`` made; see :func:`read`."""
    return list(read(data).results)


def read(data: bytes) -> Report:
    """Return a document that ``encode`` made, by this version or another.

    Raises
    ------
    TraceFormatError
        ``data`` is no such document, or one of another schema.
    """
    return parse(data, Report, SCHEMA, "a torchtriage result", "torchtriage analyze TRACE --json")


def parse(data: bytes, kind: type[Document], name: str, what: str, command: str) -> Document:
    """Return the dataclass whose document, of the schema ``name``, ``data`` is.

    Raises
    ------
    TraceFormatError
        ``data`` is no such document: ``what`` was expected, which ``command`` writes.
    """
    try:
        head = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise TraceFormatError(f"expected {what}, found no JSON: {error}") from None
    found = head.get("schema") if isinstance(head, dict) else None
    if found != name:
        raise TraceFormatError(
            f'expected {what} with schema "{name}", found {_shown(found)}',
            where="$.schema",
            hint=f"write one with: {command}",
        )
    try:
        return msgspec.convert(head, kind)
    except msgspec.ValidationError as error:
        raise TraceFormatError(
            f"the result file does not follow {name}: {error}",
            hint=f"write it again with: {command}",
        ) from None


def _shown(found: object) -> str:
    return "none" if found is None else repr(found)[:80]


def schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of the document, generated from the dataclasses."""
    return schema_of(Report, SCHEMA, f"Result of torchtriage, {SCHEMA}")


def schema_of(kind: type, name: str, title: str) -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of a dataclass whose documents name ``name``."""
    generated = plain(msgspec.json.schema(kind))
    definitions = generated["$defs"]
    for definition in definitions.values():
        # Python 3.13 and later strip a docstring's indentation, earlier ones keep it
        definition["description"] = inspect.cleandoc(definition["description"])
    definitions[kind.__name__]["properties"]["schema"] = {"const": name}
    return {
        "$schema": SCHEMA_ID,
        "title": title,
        "$ref": generated["$ref"],
        "$defs": {name: definitions[name] for name in sorted(definitions)},
    }


def plain(value: Any, where: str = "$", *, strict: bool = True) -> Any:
    """Return ``value`` as dicts, lists, text, finite numbers and None; UTF-8 can hold its text.

    Dataclasses become dicts in field order, sets become sorted lists, numpy scalars and arrays
    become what they hold. With ``strict`` off, numbers that are not finite become None.
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
        return {
            plain(str(key)): plain(item, f"{where}.{key}", strict=strict)
            for key, item in value.items()
        }
    if isinstance(value, set | frozenset):
        return sorted((plain(item, where, strict=strict) for item in value), key=repr)
    if isinstance(value, list | tuple):
        return [plain(item, f"{where}[{index}]", strict=strict) for index, item in enumerate(value)]
    if dataclasses.is_dataclass(value):
        return {
            field.name: plain(
                getattr(value, field.name),
                f"{where}.{field.name}",
                strict=strict and field.name != "evidence",
            )
            for field in dataclasses.fields(value)
        }
    if hasattr(value, "tolist"):
        return plain(value.tolist(), where, strict=strict)
    return str(value)
