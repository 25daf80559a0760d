"""Scripts with a known fault: a clean base program, and one change to it whose lines are known.

A script reads like what people write: a model, samples, a loop. Nothing in it says which lines are
the fault; those are told beside it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from string import Template
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["LOOP", "MODES", "Fault", "Program", "Script", "faults", "programs", "write"]

MODES = ("train", "infer")
LOOP = "for step in range(STEPS):"
"""The line of the hot loop; what follows, four spaces deeper, are its statements."""


@dataclass(frozen=True)
class Program:
    """A clean base program, a row of ``programs.toml``."""

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

    @property
    def features(self) -> frozenset[str]:
        """What a fault may need."""
        choices = {name for name in ("attention", "activation") if getattr(self, name)}
        return frozenset(choices.union(self.has))


@dataclass(frozen=True)
class Fault:
    """A change to a clean program, a row of ``faults.toml``."""

    code: str
    modes: tuple[str, ...]
    needs: frozenset[str]
    severities: tuple[int, ...]
    """Values of ``$n``, from light to heavy; empty when there is nothing to choose."""
    replace: Mapping[str, str]
    after: Mapping[str, str]
    effect: tuple[str, ...]
    """Sections whose time shows it, or module classes with a ``*`` in front; with none, the lines
    it adds to the loop."""

    def fits(self, program: Program, mode: str, loader: bool) -> bool:
        """Whether a program can have it."""
        return mode in self.modes and self.needs <= program.features | (
            {"loader"} if loader else set()
        )


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


@cache
def programs() -> Mapping[str, Program]:
    """Return the base programs by family."""
    return {
        family: Program(family, **(row | {"has": tuple(row.get("has", ()))}))
        for family, row in _rows("programs.toml").items()
    }


@cache
def faults() -> Mapping[str, Fault]:
    """Return the faults by code."""
    return {
        code: Fault(
            code,
            tuple(row["modes"]),
            frozenset(row.get("needs", ())),
            tuple(row.get("severity", ())),
            row.get("replace", {}),
            row.get("after", {}),
            tuple(row.get("effect", ())),
        )
        for code, row in _rows("faults.toml").items()
    }


def _rows(name: str) -> dict[str, dict[str, Any]]:
    return tomllib.loads(files(__package__).joinpath(name).read_text(encoding="utf-8"))


# -- the text ----------------------------------------------------------------------------------

# name, spaces before it, text; in the order of the script. $words are filled in by write()
_Sections = list[tuple[str, int, str]]

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


def _sections(mode: str, *, loader: bool) -> _Sections:
    train = mode == "train"
    rows: _Sections = [("head", 0, _HEAD)]
    if loader:
        rows += [("samples", 0, _READ), ("decode", 8, _DECODED), ("samples", 8, "return $sample"),
                 ("samples", 0, "\n")]  # fmt: skip
    else:
        rows.append(("samples", 0, _KEPT))
    rows += [
        ("main", 0, "def main() -> None:"),
        ("main", 4, '"""Run the loop."""'),
        ("main", 4, "torch.manual_seed(SEED)"),
        ("model", 4, "model = $model"),
        ("mode", 4, "model.train()" if train else "model.eval()"),
    ]
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
) -> Script:
    """Return a script, clean or with a fault.

    Parameters
    ----------
    mode : "train" or "infer".
    severity : one of the fault's severities.
    loader : samples are read by a DataLoader's worker, not kept in memory.
    batch : samples in a batch, the program's own when 0.
    """
    values: dict[str, Any] = {
        "title": f"{program.task.capitalize()} with {program.family}: {mode}.",
        "imports": program.imports, "define": f"\n{program.define}" if program.define else "",
        "forward": program.forward, "loss": program.loss, "sample": program.sample,
        "batch": batch or program.batch, "seed": seed, "steps": steps, "n": severity,
        "attention": program.attention, "activation": program.activation,
    }  # fmt: skip
    replace, after = dict(fault.replace if fault else {}), dict(fault.after if fault else {})
    choices = ("attention", "activation")
    chosen: dict[str, Any] = {name: replace.pop(name) for name in choices if name in replace}
    values["model"] = Template(program.model).substitute({**values, **chosen})
    lines: list[str] = []
    fault_lines: list[int] = []
    effect: list[int] = []
    sections = _sections(mode, loader=loader)
    in_loop = {name for name, *_ in sections[_loop_at(sections) + 1 :]}
    for number, (name, indent, text) in enumerate(sections):
        changed = name in replace or (name == "model" and bool(chosen))
        first = len(lines) + 1
        lines += _indented(replace.pop(name, text), indent, values)
        if changed:
            fault_lines += range(first, len(lines) + 1)
        if fault and (name in fault.effect or (changed and name in in_loop)):
            effect.append(first)
        if name in after and (number + 1 == len(sections) or sections[number + 1][0] != name):
            begun = len(lines) + 1
            lines += _indented(after.pop(name), indent, values)
            fault_lines += range(begun, len(lines) + 1)
            if name in in_loop:
                effect += [
                    begun + at
                    for at, line in enumerate(lines[begun - 1 :])
                    if len(line) - len(line.lstrip()) == indent
                ]
    assert not replace, f"no section {', '.join(replace)}"
    assert not after, f"no section {', '.join(after)}"
    modules = tuple(one[1:] for one in (fault.effect if fault else ()) if one.startswith("*"))
    return Script("\n".join(lines) + "\n", tuple(fault_lines), tuple(effect), modules)


def _loop_at(sections: _Sections) -> int:
    return next(at for at, (name, *_) in enumerate(sections) if name == "loop")


def _indented(text: str, indent: int, values: dict[str, Any]) -> Iterator[str]:
    for line in Template(text.removeprefix("\n").removesuffix("\n")).substitute(values).split("\n"):
        yield " " * indent + line if line else ""
