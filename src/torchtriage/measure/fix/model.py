"""A language model as the one that proposes: what it is asked of a finding, and candidates of its answers."""

from __future__ import annotations

import ast
import builtins
import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from torchtriage.core.finding import Cost, Finding, Frame, Place
from torchtriage.core.names import visible
from torchtriage.core.units import format_ms, format_share
from torchtriage.diagnose.lint.edits import lines_of
from torchtriage.diagnose.lint.facts import Module
from torchtriage.diagnose.lint.syntax import first_line
from torchtriage.diagnose.patterns.base import lookup
from torchtriage.diagnose.runs.causes import PYTHON
from torchtriage.diagnose.runs.compile_events import RECOMPILE
from torchtriage.diagnose.runs.hot_lines import HOT_LINE, HOT_OPERATOR_LINES, HOT_SHARE
from torchtriage.diagnose.runs.result import AccountLine, StepAccount
from torchtriage.measure.fix.candidates import Candidate, Files
from torchtriage.measure.fix.model_diff import DiffError, Shown, edits_of
from torchtriage.measure.fix.proposal import Site
from torchtriage.measure.fix.result import AttemptOutcome
from torchtriage.measure.fix.source_redaction import SourceNames
from torchtriage.measure.verify.result import Verification

MODEL = "model"
MOST_ASKED = 8
"""Findings, those that matter most first."""
MOST_FUNCTIONS, MOST_LINES, AROUND = 3, 300, 30
MOST_LISTED = 12
"""Lines in a question, by their share of the step."""
LONGEST_WHAT = 100
_CALLS_BACKWARD = re.compile(r"backward$|^torch\.autograd\.grad$")
_QUOTED = re.compile(r"(['\"]).*\1")
FORM = {
    "type": "object",
    "properties": {"what": {"type": "string"}, "diff": {"type": "string"}},
    "required": ["what", "diff"],
    "additionalProperties": False,
}


@dataclass(frozen=True)
class Question:
    """What a model is asked of one finding. ``redacted`` : only public names are in it."""

    messages: list[dict[str, str]]
    redacted: bool
    form: dict[str, Any] = field(default_factory=lambda: FORM)

    @property
    def text(self) -> str:
        """All that is sent."""
        return "\n\n".join(message["content"] for message in self.messages)

    @staticmethod
    def problem(answer: Any) -> str:
        """Return why an answer is not of the form; empty where it is."""
        if not isinstance(answer, dict) or not all(isinstance(answer.get(name), str) for name in ("what", "diff")):
            return 'expected an object with the texts "what" and "diff"'
        return ""


Ask = Callable[[Sequence[Question]], Sequence[tuple[Any, str]]]
"""Returns an answer of the form, or None and the reason, for each question."""


@dataclass(frozen=True, eq=False)
class ModelAnswer:
    """What a model made of a question: a change, or one without edits and the reason why it is dropped.

    ``refused`` : of an answer that can be given again in a better form, what is wrong with it.
    """

    finding: Finding
    shown: Mapping[str, Shown]
    question: Question
    answer: Any
    candidate: Candidate
    reason: str = ""
    refused: str = ""

    def fate(self, outcome: AttemptOutcome, reason: str, trial: Verification | None) -> str:
        """Return what the model hears of its change; empty where another would do no better."""
        if self.refused:
            return f"it was not tried: the diff {self.refused}"
        if outcome == "failed":
            # the message may hold private names
            error = re.search(r"\b[A-Z]\w*(?:Error|Exception)\b", reason)
            public = error is not None and hasattr(builtins, error[0])
            why = reason if not self.question.redacted else error[0] if error is not None and public else ""
            return f"the changed program failed{f': {why}' if why else ''}"
        if trial is None:
            return ""
        if outcome == "results differ":
            first = f", first in {trial.answers.first}" if trial.answers.first else ""
            worst = f", by {trial.answers.worst:.2g} of its size" if trial.answers.worst is not None else ""
            return f"the changed program computes something else{first}{worst}"
        if outcome in ("no difference", "slower"):
            times = f"{trial.ratio_low:.2f} to {trial.ratio_high:.2f} times"
            return f"it makes the program take {times} as long as before"
        return ""


@dataclass
class ModelProposer:
    """Asks a model for changes. ``ask`` : reaches it."""

    ask: Ask
    redact: bool = True
    names: SourceNames = field(init=False)

    def __post_init__(self) -> None:
        """Give each private name one number in all that is asked."""
        self.names = SourceNames(redact=self.redact)

    def propose(
        self, findings: Sequence[Finding], files: Files, account: StepAccount | None = None
    ) -> list[ModelAnswer]:
        """Return an answer for each finding that can be asked about.

        ``account`` : of the step, whose lines are in each question.

        Raises UsageError: source cannot be redacted.
        """
        asked: list[tuple[Finding, Mapping[str, Shown], Question]] = []
        for finding in findings:
            shown = _shown(finding, files, self.names)
            if shown and len(asked) < MOST_ASKED:
                spent = _spent(account, files, shown) if account is not None else ""
                question = Question(_messages(finding, files, shown, self.names, spent), self.redact)
                asked.append((finding, shown, question))
        return self._answers(asked)

    def propose_again(self, answers: Sequence[tuple[ModelAnswer, str]]) -> list[ModelAnswer]:
        """Return other answers to the same questions, where the model learns what became of its first one.

        That has to be free of private names.
        """
        asked = []
        for answer, fate in answers:
            first = {"role": "assistant", "content": json.dumps(answer.answer)}
            reply = {"role": "user", "content": _prompt("again").replace("{fate}", fate)}
            question = replace(answer.question, messages=[*answer.question.messages, first, reply])
            asked.append((answer.finding, answer.shown, question))
        return self._answers(asked)

    def _answers(self, asked: Sequence[tuple[Finding, Mapping[str, Shown], Question]]) -> list[ModelAnswer]:
        answers = self.ask([question for *_, question in asked]) if asked else []
        return [self._answer(*row, *answer) for row, answer in zip(asked, answers, strict=True)]

    def _answer(
        self, finding: Finding, shown: Mapping[str, Shown], question: Question, answer: Any, reason: str
    ) -> ModelAnswer:
        known = partial(ModelAnswer, finding, shown, question, answer)
        per_run = finding.cost is not None and finding.cost.per == "run"
        if answer is None:
            return known(Candidate(finding, MODEL, "no change", {}), reason)
        what = visible(" ".join(self.names.restore(answer["what"])[0].split()))[:LONGEST_WHAT] or "a change"
        if not answer["diff"].strip():
            return known(Candidate(finding, MODEL, "no change", {}), f"the model proposes none: {what}")
        try:
            edits = edits_of(answer["diff"], shown, self.names)
        except DiffError as error:
            # what it quotes may have private names
            refused = _QUOTED.sub("something", str(error)) if self.redact else str(error)
            return known(Candidate(finding, MODEL, what, {}), f"the model's diff {error}", refused)
        return known(Candidate(finding, MODEL, what, edits, per_run=per_run))


def hottest_line(account: StepAccount, files: Files) -> list[Finding]:
    """Return the line that takes most of a step, its gradients included, as a finding that promises nothing for sure.

    None below :data:`HOT_SHARE` of the step.
    """
    spent: dict[tuple[str, int], list[AccountLine]] = {}
    for line in _own_lines(account, files):
        path = files.path_of(Frame(line.file, line.line, line.function))
        if path is not None:
            spent.setdefault((path, line.line), []).append(line)
    lines = max(spent.values(), key=_share, default=[])
    share = _share(lines)
    if share < HOT_SHARE:
        return []
    first = lines[0]
    frame = Frame(first.file, first.line, first.function, exact=True, lines=(first.line,))
    cause = HOT_LINE if first.kind == PYTHON else HOT_OPERATOR_LINES
    return [
        cause.finding(
            severity="note",
            certainty="hint",
            message=f"the line takes {format_share(share)} of the {account.per}, its gradients included",
            place=Place(frame=frame),
            cost=Cost.of(
                0.0,
                share * account.of_ms,
                account.of_ms,
                share * account.of_ms,
                per="step" if account.per == "step" else "window",
                basis="bounded",
                method="all that the line takes",
                grade="C",
            ),
            evidence={"share": share},
        )
    ]


def _share(lines: Sequence[AccountLine]) -> float:
    return sum(line.share for line in lines)


def _own_lines(account: StepAccount, files: Files) -> Iterator[AccountLine]:
    """Yield the account's lines and gradients, without calls of ``backward``: their time is that of the gradients."""
    yield from account.gradients
    backward: dict[str, set[int]] = {}
    for line in account.lines:
        path = files.path_of(Frame(line.file, line.line, line.function))
        if path is not None and path not in backward:
            backward[path] = _backward_lines(files.module(path))
        if path is None or line.line not in backward[path]:
            yield line


def _backward_lines(module: Module | None) -> set[int]:
    calls = module.calls if module is not None else []
    return {call.node.func.end_lineno or 0 for call in calls if _CALLS_BACKWARD.search(call.name or call.attr)}


def _shown(finding: Finding, files: Files, names: SourceNames) -> dict[str, Shown]:
    """Return the source that a finding is about: short files; of others the functions and the imports."""
    lines: dict[str, set[int]] = {}
    for path, begin, end in _functions(finding, files):
        lines.setdefault(path, set()).update(range(begin, end + 1))
    shown = {}
    for number, (path, some) in enumerate(lines.items(), start=1):
        module, text = files.module(path), files.text(path)
        rows = names.rows(text)
        if module is None or rows is None:
            continue
        for node in module.tree.body:
            if isinstance(node, ast.Import | ast.ImportFrom):
                some |= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
        name = f"file{number}.py" if names.redact else path
        shown[name] = Shown(path, text, rows, frozenset(some & set(range(1, len(rows) + 1))))
    return shown


def _functions(finding: Finding, files: Files) -> Iterator[tuple[str, int, int]]:
    seen: set[tuple[str, int, int]] = set()
    room = MOST_LINES
    for frame, path in files.frames_of(finding):
        module = files.module(path)
        if module is None or len(seen) == MOST_FUNCTIONS:
            continue
        if any(known == path and begin <= frame.line <= end for known, begin, end in seen):
            continue
        function = Site(module, frame.line, finding).function
        n_lines = len(lines_of(files.text(path)))
        begin, end = max(frame.line - AROUND, 1), frame.line + AROUND
        if n_lines <= room:
            begin, end = 1, n_lines
        elif function is not None:
            begin = first_line(function)
            end = function.end_lineno or begin
        if end - begin >= MOST_LINES:
            begin, end = max(begin, frame.line - AROUND), min(end, frame.line + AROUND)
        place = path, begin, end
        room -= end - begin + 1
        if room >= 0:
            seen.add(place)
            yield place


def _messages(
    finding: Finding, files: Files, shown: Mapping[str, Shown], names: SourceNames, spent: str
) -> list[dict[str, str]]:
    source = "\n\n".join(f"--- {name}\n{_numbered(file)}" for name, file in shown.items())
    described = "\n".join([_described(finding, files, shown, names), *[spent] * bool(spent)])
    digest = hashlib.sha256((described + source).encode("utf-8", "backslashreplace")).hexdigest()[:16]
    asked = _prompt("finding").replace("{digest}", digest).replace("{finding}", described).replace("{source}", source)
    return [{"role": "system", "content": _prompt("system")}, {"role": "user", "content": asked}]


def _numbered(file: Shown) -> str:
    rows, last = [], 0
    for line in sorted(file.lines):
        rows += ["     ..."] * (last + 1 < line)
        rows.append(f"{line:5} {file.rows[line - 1]}".rstrip())
        last = line
    return "\n".join(rows)


def _described(finding: Finding, files: Files, shown: Mapping[str, Shown], names: SourceNames) -> str:
    """Return the finding: its own words where names may be seen, its title and numbers where not."""
    said = finding.title if names.redact else visible(finding.message)
    rows = [f"{finding.code} {finding.name} ({finding.certainty}): {said}"]
    cost, frame = finding.cost, finding.place.frame
    if cost is not None:
        rows.append(
            f"a fix saves {format_ms(cost.low_ms)} to {format_ms(cost.high_ms)}"
            f" of {format_ms(cost.of_ms)} per {cost.per}"
        )
    if frame is not None:
        path = files.path_of(frame)
        here = next((name for name, file in shown.items() if file.path == path), "")
        rows.append(f"at {here or 'a file that is not shown'}, line {frame.line}, in {names.name(frame.function)}")
    numbers = [
        f"{key} {value:.4g}"
        for key, value in finding.evidence.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    ]
    rows += [", ".join(numbers)] * bool(numbers)
    # of a recompilation the fix names what is in the source
    fix = lookup(RECOMPILE).fix if names.redact and finding.code == RECOMPILE else finding.fix
    rows.append(f"usual fix: {fix.text}")
    return "\n".join(rows)


def _spent(account: StepAccount, files: Files, shown: Mapping[str, Shown]) -> str:
    """Return which of the lines shown take most of the step."""
    names = {file.path: name for name, file in shown.items()}
    parts = []
    for line in sorted(_own_lines(account, files), key=lambda line: -line.share):
        name = names.get(files.path_of(Frame(line.file, line.line, line.function)) or "")
        if name is not None and line.line in shown[name].lines:
            parts.append(f"{name} line {line.line} {format_share(line.share)} {line.kind}")
    return f"lines by their share of the {account.per}: {', '.join(parts[:MOST_LISTED])}" if parts else ""


@lru_cache(maxsize=2)
def _prompt(name: str) -> str:
    return (Path(__file__).parent / "prompts" / f"{name}.md").read_text(encoding="utf-8").strip()
