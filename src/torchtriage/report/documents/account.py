"""Where a step's time goes and where the run's went: a bar, its parts, and the user's lines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torchtriage.core.names import file_name, visible
from torchtriage.core.units import format_count, format_ms, format_share
from torchtriage.diagnose.runs.result import AccountPart, RecordedRun, StepAccount
from torchtriage.report import blocks as b

__all__ = ["accounts"]

BAR = 40
N_LINES = 6
MIN_SHARE = 0.005
_STYLES = {
    "operators": ("█", "green"),
    "Python": ("▓", "red"),
    "files": ("▒", "yellow"),
    "compilation": ("▒", "magenta"),
    "the loop": ("█", "green"),
}
_OTHER = ("░", "blue")


def accounts(run: RecordedRun | None) -> Iterator[b.Block]:
    """Yield the account of the step and that of the run, where stacks were looked at."""
    if run is not None and run.account is not None:
        yield from _step(run.account)
    if run is not None and (whole := run.run_account) is not None:
        yield b.Rows([b.Row("run", (f"{format_ms(whole.of_ms)}: ", _parts(whole.parts)))], indent=0)


def _step(account: StepAccount) -> Iterator[b.Block]:
    what = f"{format_ms(account.of_ms)} per {account.per}"
    steps = f"{format_count(account.n_steps, 'step')}, " if account.n_steps else ""
    rests = f"  {steps}{format_count(account.n_looks, 'look')} at the stack"
    bar = b.share_bar(((part.share, *_STYLES.get(part.kind, _OTHER)) for part in account.parts), BAR)
    yield b.Rows(b.labelled(account.per, [(*bar, f" {what}", b.dim(rests)), _parts(account.parts)]), indent=0)
    lines = [line for line in account.lines if line.share >= MIN_SHARE][:N_LINES]
    room = max((len(format_share(line.share)) for line in lines), default=0)
    texts = [
        (
            b.bold(format_share(line.share).rjust(room)),
            f"  {visible(file_name(line.file))}:{line.line} in {visible(line.function)}",
            b.dim(f", {line.kind}"),
        )
        for line in lines
    ]
    yield b.Rows(b.labelled("lines", texts), indent=0, tight=True)


def _parts(parts: Sequence[AccountPart]) -> str:
    return ", ".join(f"{part.kind} {format_share(part.share)}" for part in parts if part.share >= MIN_SHARE)
