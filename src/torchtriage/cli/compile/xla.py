"""``torchtriage xla``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from torchtriage.cli.options import POSITIVE, Finite, made_of, quiet_option, result_options, value_option
from torchtriage.cli.output import check_outputs, present
from torchtriage.cli.progress import working
from torchtriage.core.errors import UsageError


@click.command("xla", context_settings={"ignore_unknown_options": True})
@click.argument("targets", nargs=-1, required=True, metavar="TARGET…")
@click.option("--train", is_flag=True, help="A step is forward, loss, backward and SGD's update.")
@click.option("--both", is_flag=True, help="Each model in inference and in training.")
@click.option("--python", metavar="PATH", help="A Python that has torch_xla; default: this one or .venv-xla.")
@click.option("--device", metavar="NAME", default="", help="PJRT device: cpu, tpu, cuda. Default: torch_xla's choice.")
@click.option("--threads", type=click.IntRange(1), metavar="N", help="Use N processors and as many threads.")
@value_option("--steps", click.IntRange(2), "N", 4, "Steps that are counted.")
@click.option("--thorough", is_flag=True, help="Time in fresh processes, three rounds at least, without a time limit.")
@value_option(
    "--rounds",
    click.IntRange(0),
    "N",
    None,
    "Timed sessions of each route; 0 counts only. Default: 3 to 6, until it is clear which is faster.",
)
@value_option("--seconds", POSITIVE, "S", 0.5, "Steady steps per timed session.")
@value_option("--timeout", Finite(1), "S", 600.0, "Count a start or run longer than this as failed.", dest="timeout_s")
@result_options
@quiet_option
@click.pass_context
def command(ctx: click.Context, /, targets: tuple[str, ...], **given: Any) -> None:
    """Count a model's graphs on PyTorch/XLA, by dynamo and by LazyTensor, and explain them.

    TARGET is module:function or file.py:function that returns (model, inputs), as for bench; or a
    script.py, run once with everything dumped; or dumps of a run: a metrics report, the output of
    PT_XLA_DEBUG, a file of XLA_SAVE_TENSORS_FILE, or a folder of these or of --xla_dump_to. Dumps
    are read without torch_xla.

    For a model: FX graphs and graph breaks; HLO graphs compiled and executed with torch.compile's
    openxla backend and with LazyTensor tracing, the reason for each that is extra, operators that
    ran on the host, transfers, times beside eager on the processor, and whether answers agree.

    \b
    torchtriage xla models.py:resnet --both
    torchtriage xla train.py -- --epochs 1
    torchtriage xla dumps/

    Exit codes: 0 measured, 2 unusable target or usage.
    """  # noqa: D301 - \b keeps click from joining lines
    from torchtriage.compile.xla.verdict import judge

    check_outputs([given["output"], given["html"]], [target for target in targets if Path(target).is_file()])
    if targets[0].endswith(".py") and Path(targets[0]).is_file():
        from torchtriage.compile.xla.python_env import find_python
        from torchtriage.compile.xla.run import run_script

        python = find_python(given["python"])
        program, code = run_script(targets, python, given["device"], given["timeout_s"])
        present(judge(programs=[program]), given)
        ctx.exit(2 if code else 0)
    for target in targets:  # those of a script are its own
        if target.startswith("-") and target != "-":
            raise click.NoSuchOption(target, ctx=ctx)
    models = [target for target in targets if _is_model(target)]
    if models and len(models) < len(targets):
        raise UsageError("expected models or dumps, found both", hint="one command for each")
    if models:
        from torchtriage.compile.xla.python_env import find_python
        from torchtriage.compile.xla.run import XlaPlan, measure
        from torchtriage.measure.bench.plan import check_target

        plan = made_of(
            XlaPlan,
            given,
            targets=tuple(map(check_target, models)),
            modes=(False, True) if given["both"] else (given["train"],),
            python=find_python(given["python"]),
        )
        with working(quiet=given["quiet"]) as progress:
            measured, notes = measure(plan, progress)
        result = judge(measured, notes=notes)
    else:
        from torchtriage.compile.xla.programs import read_dumps

        result = judge(programs=read_dumps(targets))
    present(result, given)


def _is_model(name: str) -> bool:
    where, _, function = name.rpartition(":")
    return bool(where and function) and not Path(name).exists()
