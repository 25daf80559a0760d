"""JSON as people's benchmarks write it, and each mistake in it with its place."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchtriage.core.errors import SampleError

EXPECTED = "see docs/gate-store.md for the formats of samples that are read"


@dataclass(frozen=True)
class DocumentNode:
    """A value of a document, and where it is.

    All methods raise ``SampleError`` where the value is of another type; ``where`` is the file and the path in it.
    """

    value: Any
    where: str

    def fail(self, expected: str, hint: str = "") -> SampleError:
        """Return the error that says what was expected here and what was found."""
        value = self.value
        if isinstance(value, dict | list):
            found = "an object" if isinstance(value, dict) else f"a list of {len(value)}"
        else:
            found = json.dumps(value)[:60]
        return SampleError(f"expected {expected}, found {found}", where=self.where, hint=hint)

    def has(self, key: str) -> bool:
        """Whether this is an object in which the key has a value other than null."""
        return isinstance(self.value, dict) and self.value.get(key) is not None

    def get(self, key: str) -> DocumentNode:
        """Return the value of a key, null where there is none."""
        if not isinstance(self.value, dict):
            raise self.fail("an object")
        return DocumentNode(self.value.get(key), f"{self.where}.{key}")

    def items(self) -> list[tuple[str, DocumentNode]]:
        """Return keys and values of an object."""
        if not isinstance(self.value, dict):
            raise self.fail("an object")
        return [(key, DocumentNode(member, f"{self.where}.{key}")) for key, member in self.value.items()]

    def list(self) -> list[DocumentNode]:
        """Return the members of a list."""
        if not isinstance(self.value, list):
            raise self.fail("a list")
        return [DocumentNode(member, f"{self.where}[{place}]") for place, member in enumerate(self.value)]

    def text(self, default: str | None = None) -> str:
        """Return text, or the default for null."""
        if self.value is None and default is not None:
            return default
        if not isinstance(self.value, str):
            raise self.fail("text")
        return self.value

    def number(self) -> float:
        """Return a number; NaN and infinities pass, ``Run.check`` names them."""
        if isinstance(self.value, bool) or not isinstance(self.value, int | float):
            raise self.fail("a number")
        try:
            return float(self.value)
        except OverflowError as error:
            raise SampleError("expected a number, found one beyond any float", where=self.where) from error

    def whole(self) -> int:
        """Return a whole number."""
        if isinstance(self.value, bool) or not isinstance(self.value, int):
            raise self.fail("a whole number")
        return self.value

    def numbers(self) -> tuple[float, ...]:
        """Return a list of numbers."""
        if not isinstance(self.value, list):
            raise self.fail("a list of numbers")
        if {type(member) for member in self.value} <= {float}:
            return tuple(self.value)
        return tuple(member.number() for member in self.list())


def read_documents(path: str | Path) -> list[DocumentNode]:
    """Return the JSON documents of a file: one, or one per line.

    Raises SampleError: it cannot be read, is empty, or is not JSON.
    """
    name = str(path)
    try:
        data = Path(path).read_bytes()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise SampleError(f"cannot be read: {reason}", where=name) from error
    if not data.strip():
        raise SampleError("expected samples as JSON, found an empty file", where=name)
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise SampleError("expected samples as JSON, found a binary file", where=name, hint=EXPECTED) from error
    if "\n" in text.strip():
        # pretty-printed is one document, and no line of it is one of its own
        lines = [(number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
        if all(line.lstrip().startswith("{") and line.rstrip().endswith("}") for _, line in lines):
            return [DocumentNode(parse(line, f"{name}, line {n}"), f"{name}, line {n}: $") for n, line in lines]
    return [DocumentNode(parse(text, name), f"{name}: $")]


def parse(text: str, where: str) -> Any:
    """Return what a JSON text holds; also the NaN and Infinity that Python's own writer writes.

    Raises SampleError: it is not JSON.
    """
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise SampleError(
            f"expected samples as JSON, found {text[error.pos : error.pos + 20]!r}"
            f" at line {error.lineno}, column {error.colno}: {error.msg}",
            where=where,
            hint=EXPECTED,
        ) from error
    except (RecursionError, ValueError) as error:
        # a million brackets, or a number of more digits than Python converts
        raise SampleError(f"expected samples as JSON, found {error}", where=where) from error
