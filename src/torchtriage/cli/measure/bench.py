"""``torchtriage bench``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from torchtriage.cli.options import POSITIVE, Finite, file_option, made_of, quiet_option, result_options, value_option
from torchtriage.cli.output import check_outputs, complain, present, save
from torchtriage.cli.progress import working

if TYPE_CHECKING:
    from torchtriage.measure.bench.measurements import Measurements


class _List(click.ParamType):  # type: ignore[type-arg, unused-ignore]
    """Values between commas."""

    name = "list"

    def __init__(self, kind: Callable[[str], Any] = str) -> None:
        self.kind = kind

    def convert(self, value: Any, param: Any, ctx: Any) -> tuple[Any, ...]:
        if isinstance(value, tuple):
            return value
        words = [word.strip() for word in value.split(",")]
        try:
            return tuple(self.kind(word) for word in words if word)
        except ValueError:
            self.fail(f"expected numbers between commas, found {value!r}", param, ctx)


DEFAULT_MODES = "eager,default,reduce-overhead,max-autotune"


@click.command("bench")
@click.argument("target")
@value_option("--modes", _List(), "LIST", DEFAULT_MODES, "eager and modes of torch.compile.")
@value_option("--backends", _List(), "LIST", (), "Other backends of torch.compile.")
@value_option("--batch-sizes", _List(int), "LIST", (), "The target is called with each as batch_size.")
@value_option("--dynamic", _List(), "LIST", "auto", "Dynamic shapes of torch.compile: auto, on, off.")
@value_option("--dtypes", _List(), "LIST", (), "Convert to each: float32, bfloat16, float16, float64.")
@click.option("--train", is_flag=True, help="A step is forward, loss and backward.")
@value_option("--device", str, "NAME", "", "Move model and inputs there: cpu, cuda.")
@value_option("--threads", click.IntRange(1), "N", None, "Use N processors and as many threads.")
@value_option("--deadline", POSITIVE, "MS", None, "Count steady steps that take longer than this.", dest="deadline_ms")
@value_option("--seconds", POSITIVE, "S", 1.0, "Steady steps per session.")
@value_option("--steps", click.IntRange(1), "N", 20, "Steady steps per session at least; P95 needs 20, P99 needs 100.")
@value_option("--rounds", click.IntRange(1), "N", 3, "Sessions of each setting, at least.")
@click.option(
    "--max-rounds",
    type=click.IntRange(1),
    metavar="N",
    help="Sessions until the order is clear, at most. [default: 10, and none begins after a minute]",
)
@value_option("--warm-up", Finite(0), "S", 5.0, "Longest wait for steady steps.", dest="warm_up_s")
@value_option("--timeout", Finite(1), "S", 900.0, "Count a start or run longer than this as failed.", dest="timeout_s")
@value_option("--out", click.Path(file_okay=False), "DIR", None, "Where sessions are kept: bench-TARGET.")
@click.option("--fresh", is_flag=True, help="Measure again what the folder already holds.")
@result_options
@file_option("--samples", "Also write what each session measured, for gate record --import and gate check.")
@quiet_option
def command(target: str, **given: Any) -> None:
    """Find the fastest way to run a model: eager or compiled, and in which mode.

    TARGET is module:function or file.py:function. The function may take batch_size, dtype and
    device, and returns (model, inputs), (model, inputs, loss) or a function without arguments.

    Each setting runs in fresh processes: once with empty caches, then in rounds with warm caches,
    in alternation with the others. Prints a verdict in three lines, a table, and one line of code
    for each need. A setting that crashes, hangs or gives wrong results is a row of the table. A
    benchmark that was killed resumes when you run the same command again.

    \b
    torchtriage bench models.py:resnet
    torchtriage bench models.py:resnet --batch-sizes 1,8,32 --dtypes float32,bfloat16

    Exit codes: 0 measured, 2 unusable target or usage.
    """  # noqa: D301 - \b keeps click from joining lines
    from torchtriage.measure.bench.plan import BenchPlan, check_target, folder_of, settings
    from torchtriage.measure.bench.run import measure
    from torchtriage.measure.bench.summary import summarise

    check_outputs([given["output"], given["html"], given["samples"]])
    combined = (given[name] for name in ("modes", "backends", "batch_sizes", "dynamic", "dtypes"))
    plan = made_of(BenchPlan, given, target=check_target(target), settings=settings(*combined))
    folder = Path(given["out"]) if given["out"] else folder_of(target)
    try:
        with working(quiet=given["quiet"]) as progress:
            measured = measure(plan, folder, fresh=given["fresh"], progress=progress)
    except KeyboardInterrupt:
        if not given["quiet"]:
            click.echo(f"saved in {folder}: the same command resumes there", err=True)
        raise
    if given["samples"]:
        _save_samples(measured, given["samples"])
    present(summarise(measured), given)


def _save_samples(measured: Measurements, name: str) -> None:
    from torchtriage.core.machine import gather_machine
    from torchtriage.measure.bench.samples import samples_of
    from torchtriage.measure.gate.importers import encode_runs
    from torchtriage.measure.gate.revision import find_revision

    run = samples_of(measured, find_revision(Path.cwd()).run("", gather_machine()))
    if run.series:
        save(name, encode_runs([run]))
    else:
        complain(f"{name} was not written: no setting could be measured")
