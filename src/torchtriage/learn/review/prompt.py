"""What a language model is sent: the files of ``prompts/``, filled in."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from pathlib import Path
from typing import Any

from torchtriage.core.docpages import section
from torchtriage.diagnose.patterns import lookup
from torchtriage.learn.review.evidence import Evidence
from torchtriage.learn.review.reviewer import NONE

__all__ = ["again", "messages", "reply_schema"]

PROMPTS = Path(__file__).parent / "prompts"
LOOKS_LIKE = 300
"""Characters of each pattern's description."""


def messages(evidence: Evidence) -> list[dict[str, str]]:
    """Return the messages that ask for the review of one window."""
    digest = hashlib.sha256(evidence.text.encode("utf-8", "backslashreplace")).hexdigest()[:16]
    window = _prompt("window").replace("{digest}", digest).replace("{evidence}", evidence.text)
    return [{"role": "system", "content": _system(evidence.codes)}, {"role": "user", "content": window}]


def again(problem: str) -> dict[str, str]:
    """Return the message that says why an answer was not taken."""
    return {"role": "user", "content": _prompt("again").replace("{problem}", problem)}


def reply_schema(evidence: Evidence) -> dict[str, Any]:
    """Return the JSON Schema of a review of this window: its codes and its ids alone.

    In the subset that endpoints with strict schemas know: no bounds, every field required.
    """
    ids = {"type": "array", "items": {"type": "string", "enum": [line.id for line in evidence.lines]}}
    sentences = {"type": "array", "items": _object(text={"type": "string"}, evidence=ids)}
    code = {"type": "string", "enum": [*evidence.codes, NONE]}
    return _object(code=code, confidence={"type": "number"}, why=sentences, advice=sentences)


def _object(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


@lru_cache(maxsize=16)
def _system(codes: tuple[str, ...]) -> str:
    return _prompt("system").replace("{codes}", "\n".join(map(_described, codes)))


def _described(code: str) -> str:
    entry = lookup(code)
    looks = section(entry.page, "Looks like").replace("``", "`")
    if len(looks) > LOOKS_LIKE:
        looks = looks[: looks.rfind(" ", 0, LOOKS_LIKE)] + " ..."
    return f"- {code} {entry.pattern.name}: {entry.pattern.title}. Looks like: {looks}"


@lru_cache(maxsize=8)
def _prompt(name: str) -> str:
    return (PROMPTS / f"{name}.md").read_text(encoding="utf-8").strip()
