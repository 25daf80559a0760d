"""Write the files of a new pattern or lint rule: ``make new-pattern NAME=sync/some-name``, ``make new-rule NAME=...``.

What is written passes the checks as it stands: it looks for an operator or a call that nobody has, so
that it can be changed step by step (docs/how-to-add.md).
"""

import re
import sys
from pathlib import Path

from torchtriage.api.catalogue import pages
from torchtriage.core.errors import TriageError, UsageError

ROOT = Path(__file__).resolve().parent.parent
FIRST_RULE = 101
"""Codes below belong to what a trace shows; source alone begins here."""

PATTERN = '''"""One sentence: what is wrong.

Looks like: the structure in time that proves it, not a name alone.
Slow because: what the machine does meanwhile.
Cost: which time is at stake, and how much of it a fix saves.
Fix: what to change.
Leave it when: the cases where it is right as it is.
Source: where this is documented.
"""

import numpy as np

from torchtriage.core.units import format_ns, ms
from torchtriage.diagnose.patterns._recurrence import recurs
from torchtriage.diagnose.patterns.base import Claim, Claims, Edit, Fix, Pattern, Trace

PATTERN = Pattern.of(__name__, "{code}", "{title}", order={order}, needs="ops work")

FIX = Fix(
    text="One sentence: what to do instead.",
    code="out = torch.replacement(x)",
    link="https://docs.pytorch.org/docs/stable/index.html",
)

MIN_SHARE = 0.02
"""Of the step. A threshold cites its evidence: which healthy recordings stay below it."""


def find(trace: Trace) -> Claims:
    """Yield one claim for each distinct cause."""
    steps = trace.steps
    rows = np.flatnonzero(trace.named("{op}"))
    spans = trace.time_of(rows)
    lost_ns = steps.judged_ns(spans) / steps.n_steady
    if not recurs(trace, rows) or lost_ns < MIN_SHARE * steps.wall_ns:
        return
    yield Claim(
        message=f"{op} takes {{format_ns(lost_ns)}} of {{format_ns(steps.wall_ns)}} {{steps.per}}",
        certainty="likely",
        rows=rows,
        spans=spans,
        gain_low=1 / trace.origin.inflation,
        time_class="host",
        method="host time of these operators",
        evidence={{"host_ms_per_step": ms(lost_ns), "n_ops_per_step": steps.mean_count(steps.of_host(rows))}},
        anchor=trace.longest(rows),
        edits=(Edit("drop", rows),),
    )
'''

PATTERN_TEST = '''"""{code} on built traces; times in microseconds."""

from builder import TraceBuilder

from torchtriage.diagnose.patterns.{family}.{stem} import find


def loop(op_us: float) -> TraceBuilder:
    trace = TraceBuilder(vendor="cpu")
    for step in range(4):
        trace.step(step, step * 1000, 1000).op("{op}", step * 1000 + 10, op_us)
    return trace


def test_quiet_below_the_threshold() -> None:
    assert not loop(5).claims(find)


def test_the_cost_is_the_time_of_the_operators() -> None:
    (claim,) = loop(100).claims(find)
    assert claim.evidence["host_ms_per_step"] == 0.1
    assert claim.evidence["n_ops_per_step"] == 1
'''

RULE = '''"""One sentence: what is wrong.

Looks like: the calls and where they stand.
Slow because: what the machine does meanwhile.
Fix: what to change.
Quiet when: the look-alikes that are right as they are.
Source: where this is documented.
"""

from collections.abc import Iterator

from torchtriage.diagnose.lint.base import Fix, Hit, Module, Rule

RULE = Rule("{code}", "{name}", "{family}", "{title}", "low")

FIX = Fix(
    text="One sentence: what to do instead.",
    code="out = torch.replacement(x)",
    link="https://docs.pytorch.org/docs/stable/index.html",
)


def find(module: Module) -> Iterator[Hit]:
    """Yield calls in each step."""
    for call in module.called("torch.{stem}"):
        if call.context.hot:
            yield Hit(call.node, "torch.{stem}() in every step", "{stem}")
'''

CORPUS = """=== loud in a loop
import torch
model = torch.nn.Linear(3, 3).cuda()
for batch in train_loader:
    torch.{stem}(model(batch))  #! {code}
=== quiet outside of it
import torch
torch.{stem}(3)
"""


def new_pattern(name: str, root: Path = ROOT) -> list[Path]:
    """Write the module and the test of a pattern ``family/some-name`` and return their paths.

    Raises
    ------
    UsageError
        The name is taken or no name, or a file is there already.
    """
    family, name = _split(name)
    taken = [page for page in pages() if page.name == name and page.part == "trace"]
    if taken:
        raise UsageError(f"expected a new name, found {name!r}, which {taken[0].code} has")
    letters = _letters(family)
    numbers = [number for number in _numbers() if number < FIRST_RULE]
    stem = name.replace("-", "_")
    values = _values(f"{letters}{max(numbers) + 1:03d}", family, name) | {"order": 900, "op": f"aten::{stem}"}
    files = {
        f"src/torchtriage/diagnose/patterns/{family}/{stem}.py": PATTERN,
        f"tests/diagnose/patterns/{family}/test_{stem}.py": PATTERN_TEST,
    }
    package = root / f"src/torchtriage/diagnose/patterns/{family}/__init__.py"
    if not package.exists():
        files[str(package.relative_to(root))] = '"""{title}."""\n'
    return _write(root, files, values)


def new_rule(name: str, root: Path = ROOT) -> list[Path]:
    """Write the module and the planted faults of a lint rule and return their paths.

    The name of a pattern gives the rule that pattern's code; a new one, ``family/some-name``, a code
    of its own.

    Raises
    ------
    UsageError
        The name is taken or no name, or a file is there already.
    """
    known = {page.name: page for page in pages() if page.part == "trace"}
    if name in known:
        code, family = known[name].code, known[name].family
    else:
        family, name = _split(name)
        code = f"{_letters(family)}{max([*_numbers(), FIRST_RULE - 1]) + 1:03d}"
    stem = name.replace("-", "_")
    files = {f"src/torchtriage/diagnose/lint/rules/{stem}.py": RULE, f"tests/diagnose/lint/corpus/{stem}.txt": CORPUS}
    return _write(root, files, _values(code, family, name))


def _split(name: str) -> tuple[str, str]:
    if not re.fullmatch(r"[a-z]+/[a-z][a-z0-9]*(-[a-z0-9]+)*", name):
        raise UsageError(f"expected NAME=family/some-name, found {name!r}")
    family, _, name = name.partition("/")
    return family, name


def _letters(family: str) -> str:
    """Return the first letters of a family's codes: those it has, or new ones."""
    return next((page.code[:3] for page in pages() if page.family == family), family[:3].upper())


def _numbers() -> list[int]:
    return [int(page.code[3:]) for page in pages()]


def _values(code: str, family: str, name: str) -> dict[str, object]:
    title = name.replace("-", " ").capitalize()
    return {"code": code, "family": family, "name": name, "stem": name.replace("-", "_"), "title": title}


def _write(root: Path, files: dict[str, str], values: dict[str, object]) -> list[Path]:
    paths = [root / name for name in files]
    for path in paths:
        if path.exists():
            raise UsageError(f"expected a new file, found {path}")
    for path, template in zip(paths, files.values(), strict=True):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(template.format_map(values), encoding="utf-8")
    return paths


def main(arguments: list[str]) -> int:
    """Write what ``pattern NAME`` or ``rule NAME`` asks for; 2 where that cannot be."""
    kinds = {"pattern": new_pattern, "rule": new_rule}
    if len(arguments) != 2 or arguments[0] not in kinds:
        print("usage: scaffold.py pattern|rule NAME", file=sys.stderr)
        return 2
    try:
        written = kinds[arguments[0]](arguments[1])
    except TriageError as error:
        print(f"scaffold: {error}", file=sys.stderr)
        return 2
    print("\n".join(f"wrote {path.relative_to(ROOT)}" for path in written))
    print("next: docs/how-to-add.md")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
