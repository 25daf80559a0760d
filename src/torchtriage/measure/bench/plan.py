"""What is measured: the settings, how long, and where a target is found."""

from __future__ import annotations

import hashlib
import inspect
import json
import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torchtriage.core.errors import UsageError
from torchtriage.measure.bench.result import Setting

MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")
DYNAMIC = {"auto": None, "on": True, "off": False}
"""What ``torch.compile(dynamic=...)`` gets."""
MOST_ROUNDS = 10
DTYPES = ("float64", "float32", "float16", "bfloat16")
"""Most precise first."""


@dataclass(frozen=True)
class BenchPlan:
    """One benchmark, whole.

    ``target`` : ``module:function`` or ``file.py:function``. ``device`` : empty for where the target puts its
    model. ``threads`` : of the processor, None for PyTorch's choice. ``seconds`` : steady steps per session, at
    least ``steps`` of them. ``rounds`` : at least so many sessions of each setting, up to ``max_rounds`` until the
    order is clear; without it as many as begin in a minute. ``timeout_s`` : for each start and each block.
    ``warm_up_s`` : how long steps may take to become steady.
    """

    target: str
    settings: tuple[Setting, ...]
    train: bool = False
    device: str = ""
    threads: int | None = None
    seconds: float = 1.0
    steps: int = 20
    rounds: int = 3
    max_rounds: int | None = None
    timeout_s: float = 900.0
    warm_up_s: float = 5.0
    deadline_ms: float | None = None

    def __post_init__(self) -> None:
        """Refuse what cannot be measured.

        Raises UsageError: a number is not finite or too small.
        """
        for name, least in (("steps", 1), ("rounds", 1), ("max_rounds", 1), ("threads", 1)):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or value < least):
                raise UsageError(f"expected {name} of {least} or more, found {value!r}")
        if self.max_rounds is not None and self.max_rounds < self.rounds:
            raise UsageError(
                f"expected max_rounds of {self.rounds} or more, found {self.max_rounds}",
                hint=f"lower the minimum, too: rounds={self.max_rounds}, --rounds {self.max_rounds}",
            )
        for name in ("seconds", "timeout_s", "deadline_ms"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise UsageError(f"expected {name} above 0, found {value!r}")
        if not 0 <= self.warm_up_s < math.inf:
            raise UsageError(f"expected warm_up_s of 0 or more, found {self.warm_up_s!r}")

    @property
    def most_rounds(self) -> int:
        """Rounds at most."""
        return max(self.rounds, MOST_ROUNDS if self.max_rounds is None else self.max_rounds)

    @property
    def digest(self) -> str:
        """Return a short hash of what the numbers depend on: equal plans can go on in one folder.

        More rounds and another deadline are asked of the same sessions.
        """
        facts = asdict(self)
        for name in ("rounds", "max_rounds", "deadline_ms", "timeout_s"):
            del facts[name]
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]

    def other_size(self, setting: Setting) -> int | None:
        """Return the next batch size of the plan, the first after the last; None with only one."""
        sizes = sorted({setting.batch_size for setting in self.settings if setting.batch_size is not None})
        if setting.batch_size is None or len(sizes) < 2:
            return None
        return sizes[(sizes.index(setting.batch_size) + 1) % len(sizes)]

    def standard(self, setting: Setting) -> str:
        """Return the most precise dtype of the plan, empty where the setting has it.

        Answers in less are held against the model in that one.
        """
        asked = [setting.dtype for setting in self.settings if setting.dtype]
        finest = min(asked, key=DTYPES.index, default="")
        return "" if finest == setting.dtype else finest

    def groups(self) -> list[list[Setting]]:
        """Return the settings that run in turns: those of one batch size and dtype."""
        found: dict[tuple[int | None, str], list[Setting]] = {}
        for setting in self.settings:
            found.setdefault((setting.batch_size, setting.dtype), []).append(setting)
        return list(found.values())


def settings(
    modes: Sequence[str] = ("eager", *MODES[:3]),
    backends: Sequence[str] = (),
    batch_sizes: Sequence[int] = (),
    dynamic: Sequence[str] = ("auto",),
    dtypes: Sequence[str] = (),
) -> tuple[Setting, ...]:
    """Return every combination; eager has no dynamic shapes, so it comes once.

    Raises UsageError: a mode, dtype or batch size that does not exist, or nothing to run.
    """
    lists: dict[str, Any] = {
        "modes": modes,
        "backends": backends,
        "batch_sizes": batch_sizes,
        "dynamic": dynamic,
        "dtypes": dtypes,
    }
    for what, given in lists.items():
        if isinstance(given, str) or not isinstance(given, Sequence):
            raise UsageError(f"expected a list, found {what}={given!r}", hint=f"{what}=[{given!r}]")
    _check("mode", modes, ("eager", *MODES))
    _check("dynamic", dynamic, tuple(DYNAMIC))
    _check("dtype", dtypes, DTYPES)
    for size in lists["batch_sizes"]:
        if not isinstance(size, int) or size < 1:
            raise UsageError(f"expected batch sizes of 1 or more, found {size!r}")
    ways: list[tuple[str, str, str]] = []
    for mode in modes:
        if mode == "eager":
            ways.append(("eager", "", "auto"))
        else:
            ways += [(mode, "inductor", how) for how in dynamic]
    for backend in backends:
        # what has no modes: "inductor" as a backend is the default mode
        name = ("default", "inductor") if backend == "inductor" else ("", backend)
        ways += [(*name, how) for how in dynamic]
    if not ways:
        raise UsageError("expected at least one mode or backend", hint="--modes eager,default")
    return tuple(
        Setting(mode, backend, how, size, dtype)
        for dtype in _unique(dtypes or [""])
        for size in _unique(batch_sizes or [None])
        for mode, backend, how in _unique(ways)
    )


def _unique(values: Iterable[Any]) -> list[Any]:
    return list(dict.fromkeys(values))


def _check(what: str, given: Sequence[str], known: Sequence[str]) -> None:
    for name in given:
        if name not in known:
            raise UsageError(
                f"expected a {what} out of {', '.join(known)}, found {name!r}",
                hint="other compilers are backends: --backends NAME" if what == "mode" else "",
            )


def check_target(target: str) -> str:
    """Return the target if it is spelled as one.

    Raises UsageError: it is not ``module:function`` or ``file.py:function``, or there is no such file.
    """
    where, colon, name = target.rpartition(":")
    if not (colon and where and name):
        raise UsageError(
            "expected module:function or file.py:function", where=target, hint="torchtriage bench models.py:build"
        )
    if where.endswith(".py") and not Path(where).is_file():
        raise UsageError("expected a Python file, found no such file", where=where)
    return target


def folder_of(target: str) -> Path:
    """Return where a target's sessions are stored by default: ``bench-models-py-bert``."""
    where, _, name = target.rpartition(":")
    words = f"{Path(where).name if where.endswith('.py') else where}-{name}"
    return Path(f"bench-{re.sub(r'[^A-Za-z0-9]+', '-', words).strip('-')}")


def target_of(function: Callable[..., Any]) -> str:
    """Return the target that names a function, so that another process can find it.

    Raises UsageError: it has no name of its own in a file: a lambda, or defined inside a function or a shell.
    """
    name = getattr(function, "__qualname__", "")
    try:
        file = inspect.getsourcefile(function)
    except TypeError:
        file = None
    if file is None or not Path(file).is_file() or "<" in name or not name:
        raise UsageError(
            f"expected a function of a file, found {name or function!r}: separate processes must be able to import it",
            hint="define it at the top of a module, or pass 'module:function'",
        )
    return f"{file}:{name}"
