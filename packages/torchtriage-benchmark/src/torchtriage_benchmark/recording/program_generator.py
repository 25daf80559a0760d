"""Scripts with a known fault: a clean base program, and one change to it whose lines are known.

A script reads like what people write: a model, samples, a loop. Nothing in it says which lines are
the fault; those are told beside it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from string import Template
from typing import Any

from torchtriage.core.toml import read_toml

MODES = ("train", "infer")
PARTS = ("eager", "compiled", "ranks", "lookalikes")
"""As people begin; under torch.compile; two processes with DistributedDataParallel; clean programs
with what only looks like a fault."""
LOOP = "for step in range(STEPS):"
"""The line of the hot loop; what follows, four spaces deeper, are its statements."""


@dataclass(frozen=True)
class Program:
    """A clean base program, a row of ``programs.toml`` or ``compiled.toml``."""

    family: str
    task: str
    imports: str
    model: str
    sample: str
    batch: int
    forward: str = "model(**inputs)"
    loss: str = "out.loss"
    define: str = ""
    has: tuple[str, ...] = ()
    attention: str = ""
    activation: str = ""
    prepare: str = ""

    @property
    def features(self) -> frozenset[str]:
        """What a fault may need."""
        choices = {name for name in ("attention", "activation", "prepare") if getattr(self, name)}
        return frozenset(choices.union(self.has))


@dataclass(frozen=True)
class Fault:
    """A change to a clean program, a row of ``faults.toml`` or ``lookalikes.toml``."""

    name: str
    code: str
    """Of the pattern, empty for what only looks like one."""
    parts: frozenset[str]
    modes: tuple[str, ...]
    needs: frozenset[str]
    severities: tuple[int, ...]
    """Values of ``$n``, from light to heavy; empty when there is nothing to choose."""
    replace: Mapping[str, str]
    after: Mapping[str, str]
    effect: tuple[str, ...]
    """Sections whose time shows it, module classes with a ``*`` in front, or events with a ``~``;
    with none, the lines it adds to the loop."""
    late: int | None
    """The rank that has it, where one alone has."""
    waits: tuple[str, ...]
    """``effect`` on the other ranks, which wait for that one."""
    least: float
    """Share of the steps that it takes; a recording where it takes less is refused."""
    least_batch: int
    """With fewer samples it is no fault."""

    def fits(self, program: Program, mode: str, loader: bool) -> bool:
        """Whether a program can have it."""
        return mode in self.modes and self.needs <= program.features | ({"loader"} if loader else set())


@dataclass(frozen=True)
class Script:
    """A program's text. Lines count from 1."""

    text: str
    fault_lines: tuple[int, ...]
    """Lines that the clean twin has not."""
    effect_lines: tuple[int, ...]
    """First lines of the loop's statements whose time shows the fault."""
    effect_modules: tuple[str, ...]
    """Classes of modules whose time shows it."""
    effect_events: tuple[str, ...]
    """Patterns of the names of events whose time shows it."""


@cache
def programs(part: str = "eager") -> Mapping[str, Program]:
    """Return the base programs of a part by family."""
    rows = _rows("compiled.toml" if part == "compiled" else "programs.toml").items()
    return {
        family: Program(family, **(row | {"has": tuple(row.get("has", ()))}))
        for family, row in rows
        if part != "ranks" or "ranks" in row.get("has", ())
    }


@cache
def faults(part: str = "eager") -> Mapping[str, Fault]:
    """Return the faults of a part by name: the pattern's code, and a word where it has several."""
    return _changes("faults.toml", part)


@cache
def fault_modules() -> tuple[str, ...]:
    """Return the classes of modules that show a fault; marked in every program, so none tells."""
    effects = (item for row in faults().values() for item in row.effect)
    return tuple(sorted(effect.removeprefix("*") for effect in effects if effect.startswith("*")))


@cache
def lookalikes() -> Mapping[str, Fault]:
    """Return what only looks like a fault, by name."""
    return _changes("lookalikes.toml", "lookalikes")


def _changes(file: str, part: str) -> Mapping[str, Fault]:
    named = {
        name: Fault(
            name,
            name.partition("-")[0] if file == "faults.toml" else "",
            frozenset(row.get("parts", ("eager",) if file == "faults.toml" else (part,))),
            tuple(row["modes"]),
            frozenset(row.get("needs", ())),
            tuple(row.get("severity", ())),
            row.get("replace", {}),
            row.get("after", {}),
            tuple(row.get("effect", ())),
            row.get("late"),
            tuple(row.get("waits", ())),
            row.get("least", 0.0),
            row.get("least_batch", 1),
        )
        for name, row in _rows(file).items()
    }
    return {name: item for name, item in named.items() if part in item.parts}


def _rows(name: str) -> dict[str, dict[str, Any]]:
    return read_toml(files(__package__).joinpath(name))


# -- the text ----------------------------------------------------------------------------------

# name, spaces before it, text; in the order of the script. $words are filled in by write()
_Sections = list[tuple[str, int, str]]
_BETWEEN = "        # between\n"  # where compiled code may be split, a line of the model's forward

_HEAD = '''"""$title"""

import gc
import itertools
import time

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset
$imports

STEPS = $steps
BATCH_SIZE = $batch
SEED = $seed
$define

def pixels(rng: np.random.Generator, size: int) -> torch.Tensor:
    """Return an image, float32[3, size, size]."""
    return torch.from_numpy(rng.normal(0, 1, (3, size, size)).astype(np.float32))


def label(rng: np.random.Generator, classes: int) -> torch.Tensor:
    """Return a class, int64[]."""
    return torch.tensor(int(rng.integers(0, classes)))


'''

_PARALLEL = """import os
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel"""

_KEPT = '''class Samples(Dataset):
    """Samples that fit into memory."""

    def __init__(self) -> None:
        rng = np.random.default_rng(SEED)
        self.kept = [$sample for _ in range(8 * BATCH_SIZE)]

    def __len__(self) -> int:
        return len(self.kept)

    def __getitem__(self, number: int) -> dict[str, torch.Tensor]:
        return self.kept[number]


'''

_READ = '''class Samples(Dataset):
    """Samples that are read and decoded when asked for."""

    def __len__(self) -> int:
        return 1000 * BATCH_SIZE

    def __getitem__(self, number: int) -> dict[str, torch.Tensor]:
        rng = np.random.default_rng(SEED + number)
'''

_DECODED = "np.sort(rng.normal(0, 1, 50_000))  # stands for decoding"


def _sections(mode: str, *, loader: bool, part: str) -> _Sections:
    train = mode == "train"
    if part == "compiled":
        head, _, helpers = _HEAD.partition("$define\n")
        rows: _Sections = [("head", 0, f"{head}$define"), ("between", 8, ""), ("helpers", 0, f"$rest\n{helpers}")]
    else:
        rows = [("head", 0, _HEAD)]
    if loader:
        rows += [("samples", 0, _READ), ("decode", 8, _DECODED), ("samples", 8, "return $sample"), ("samples", 0, "\n")]
    else:
        rows.append(("samples", 0, _KEPT))
    rows += [
        ("main", 0, "def main() -> None:"),
        ("main", 4, '"""Run the loop."""'),
        *([("main", 4, 'dist.init_process_group("gloo")')] if part == "ranks" else []),
        ("main", 4, "torch.manual_seed(SEED)"),
        ("model", 4, "model = $model"),
        ("mode", 4, "model.train()" if train else "model.eval()"),
    ]
    if part == "compiled":
        rows.append(("compile", 4, "model = torch.compile(model)"))
    elif part == "ranks":
        rows.append(("wrap", 4, "model = DistributedDataParallel(model)"))
    if train:
        made = "optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)"
        rows.append(("optimizer", 4, made))
    workers = ", num_workers=1, persistent_workers=True, prefetch_factor=4" if loader else ""
    rows += [
        ("loader", 4, f"loader = DataLoader(Samples(), BATCH_SIZE{workers})"),
        ("loader", 4, "batches = itertools.chain.from_iterable(itertools.repeat(loader))"),
        ("log", 4, 'log = open("log.txt", "w")'),
    ]
    if not train:
        rows.append(("graph", 4, "with torch.inference_mode():"))
    at = 4 if train else 8
    rows += [
        ("loop", at, LOOP),
        ("fetch", at + 4, "inputs = next(batches)"),
        *([("prepare", at + 4, "$prepare")] if part == "compiled" else []),
        ("forward", at + 4, "out = $forward"),
    ]
    if train:
        rows += [
            ("loss", at + 4, "loss = $loss"),
            ("zero", at + 4, "optimizer.zero_grad()"),
            ("backward", at + 4, "loss.backward()"),
            ("step", at + 4, "optimizer.step()"),
        ]
    rows += [
        ("end", at + 4, "if step % 50 == 49:"),
        ("end", at + 8, 'print(f"step {step}", file=log)'),
        *([("leave", 4, "dist.destroy_process_group()")] if part == "ranks" else []),
        ("foot", 0, '\n\nif __name__ == "__main__":\n    main()\n'),
    ]
    return rows


def write(
    program: Program,
    mode: str,
    fault: Fault | None = None,
    *,
    severity: int = 0,
    loader: bool = False,
    batch: int = 0,
    seed: int = 0,
    steps: int = 12,
    part: str = "eager",
    rank: int = 0,
) -> Script:
    """Return a script, clean or with a fault, or with what looks like one.

    Parameters
    ----------
    mode : "train" or "infer".
    severity : one of the fault's severities.
    loader : samples are read by a DataLoader's worker, not kept in memory.
    batch : samples in a batch, the program's own when 0.
    part : one of ``PARTS``.
    rank : whose effects are told; the text is the same for all.
    """
    define, _, rest = program.define.partition(_BETWEEN)
    imports = program.imports
    if part == "ranks":
        imports = f"{_PARALLEL}\n{imports}".strip()
    values: dict[str, Any] = {
        "title": f"{program.task.capitalize()} with {program.family}: {mode}.",
        "imports": imports,
        "define": f"\n{define}" if define else "",
        "rest": rest,
        "forward": program.forward,
        "loss": program.loss,
        "sample": program.sample,
        "batch": batch or program.batch,
        "steps": steps,
        "n": severity,
        "seed": f'{seed} + int(os.environ["RANK"])' if part == "ranks" else seed,
        "prepare": program.prepare,
        "attention": program.attention,
        "activation": program.activation,
    }
    replace, after = dict(fault.replace if fault else {}), dict(fault.after if fault else {})
    choices = ("attention", "activation")
    chosen: dict[str, Any] = {name: replace.pop(name) for name in choices if name in replace}
    values["model"] = Template(program.model).substitute({**values, **chosen})
    lines: list[str] = []
    fault_lines: list[int] = []
    effect: list[int] = []
    sections = _sections(mode, loader=loader, part=part)
    waits = fault is not None and fault.late is not None and fault.late != rank
    effects = () if fault is None else fault.waits if waits else fault.effect
    in_loop = {name for name, *_ in sections[_loop_at(sections) + 1 :]}
    for number, (name, indent, text) in enumerate(sections):
        changed = name in replace or (name == "model" and bool(chosen))
        first = len(lines) + 1
        if text := replace.pop(name, text):
            lines += _indented(text, indent, values)
        if changed:
            fault_lines += range(first, len(lines) + 1)
        if name in effects or (changed and name in in_loop and not waits):
            effect.append(first)
        if name in after and (number + 1 == len(sections) or sections[number + 1][0] != name):
            begun = len(lines) + 1
            lines += _indented(after.pop(name), indent, values)
            fault_lines += range(begun, len(lines) + 1)
            if name in in_loop and not waits:
                effect += [
                    begun + at for at, line in enumerate(lines[begun - 1 :]) if len(line) - len(line.lstrip()) == indent
                ]
    assert not replace, f"no section {', '.join(replace)}"
    assert not after, f"no section {', '.join(after)}"
    modules, events = (tuple(effect[1:] for effect in effects if effect.startswith(kind)) for kind in ("*", "~"))
    if fault is not None and not fault.code:
        fault_lines, effect = [], []
    text = "\n".join(lines) + "\n"
    return Script(text, tuple(fault_lines), tuple(effect), modules, events)


def _loop_at(sections: _Sections) -> int:
    return next(at for at, (name, *_) in enumerate(sections) if name == "loop")


def _indented(text: str, indent: int, values: dict[str, Any]) -> Iterator[str]:
    for line in Template(text.removeprefix("\n").removesuffix("\n")).substitute(values).split("\n"):
        yield " " * indent + line if line else ""
