"""What a language model is sent: the files of ``prompts/``, filled in."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from pathlib import Path
from typing import Any

from torchtriage.diagnose.patterns import lookup
from torchtriage.learn.review.evidence import Evidence
from torchtriage.learn.review.relevance import bears_on
from torchtriage.learn.review.reviewer import NONE

PROMPTS = Path(__file__).parent / "prompts"
N_CANDIDATES = 8
"""Codes whose pages are sent, some 350 tokens each; of the others, their titles."""


def messages(evidence: Evidence) -> list[dict[str, str]]:
    """Return the messages that ask for the review of one window."""
    digest = hashlib.sha256(evidence.text.encode("utf-8", "backslashreplace")).hexdigest()[:16]
    window = _prompt("window").replace("{digest}", digest).replace("{evidence}", evidence.text)
    return [
        {"role": "system", "content": _system(evidence.codes, _candidates(evidence))},
        {"role": "user", "content": window},
    ]


def again(problem: str) -> dict[str, str]:
    """Return the message that says why an answer was not taken."""
    return {"role": "user", "content": _prompt("again").replace("{problem}", problem)}


def reply_schema(evidence: Evidence) -> dict[str, Any]:
    """Return the JSON Schema of a review of this window: its codes and its ids alone.

    In the subset that endpoints with strict schemas know: no bounds, every field required.
    """
    ids = {"type": "array", "items": {"type": "string", "enum": [line.id for line in evidence.lines]}}
    code = {"type": "string", "enum": [*evidence.codes, NONE]}
    return _object(code=code, confidence={"type": "number"}, why=ids, against=ids)


def _object(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


def _candidates(evidence: Evidence) -> tuple[str, ...]:
    """Return the codes that the evidence may show, in the catalogue's order, which says nothing of what rules found."""
    told = [line.facts["code"] for line in evidence.of_kind("finding")]
    told += [line.facts["code"] for line in evidence.of_kind("elsewhere")]
    told += [code for line in evidence.of_kind("detector") for code in line.facts["types"]]
    measured = [line for line in evidence.lines if line.kind not in ("finding", "elsewhere", "detector")]
    borne = {code: sum(bears_on(line, code) for line in measured) for code in evidence.codes}
    told += sorted((code for code in borne if borne[code]), key=lambda code: -borne[code])
    chosen = list(dict.fromkeys(code for code in told if code in borne))[:N_CANDIDATES]
    return tuple(code for code in evidence.codes if code in chosen)


@lru_cache(maxsize=16)
def _system(codes: tuple[str, ...], candidates: tuple[str, ...]) -> str:
    pages = "\n\n".join(map(_page, candidates)) or "(none)"
    others = "\n".join(_title(code) for code in codes if code not in candidates) or "(none)"
    return _prompt("system").replace("{pages}", pages).replace("{codes}", others)


def _title(code: str) -> str:
    pattern = lookup(code).pattern
    return f"- {code} {pattern.name}: {pattern.title}"


def _page(code: str) -> str:
    return f"{_title(code)}\n{lookup(code).page.replace('``', '`').strip()}"


@lru_cache(maxsize=8)
def _prompt(name: str) -> str:
    return (PROMPTS / f"{name}.md").read_text(encoding="utf-8").strip()
