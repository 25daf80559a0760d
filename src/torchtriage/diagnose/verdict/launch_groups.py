"""What launches belong together: the operator, module, annotation or line they are made in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from torchtriage.core.arrays import Ints
from torchtriage.core.source.locate import Locator
from torchtriage.core.trace import Kind, Trace
from torchtriage.core.trace.frames import frame_label, user_stack
from torchtriage.core.trace.user_places import innermost, user_places, where_known
from torchtriage.diagnose.verdict.options import By

_MODULE = "nn.Module: "

Groups = tuple[Ints, list[str]]
"""int64[k], the group of each row, and the names of the groups; an empty name is none."""


def grouped(trace: Trace, calls: NDArray[np.integer], by: By, places: Locator | None) -> Groups | None:
    """Group launch calls, -1 for none; None where ``by`` says nothing of launches."""
    way = _WAYS.get(by)
    return way(_Launches(trace, calls.astype(np.int64)), places) if way is not None else None


def named(trace: Trace, rows: NDArray[np.integer]) -> Groups:
    """Group by the names of some rows, -1 for none."""
    code = np.where(rows >= 0, trace.name[rows] + 1, 0)
    seen = np.flatnonzero(np.bincount(code, minlength=1))
    group = np.zeros(len(trace.names) + 1, np.int64)
    group[seen] = np.arange(len(seen))
    return group[code], ["" if item == 0 else frame_label(trace.names[item - 1]) for item in seen.tolist()]


@dataclass(frozen=True, eq=False)
class _Launches:
    trace: Trace
    rows: Ints

    @cached_property
    def _calls(self) -> tuple[Ints, Ints]:
        """The distinct calls, and which of them each row is; -1 among them stands for none."""
        return np.unique(self.rows, return_inverse=True)

    def by_operator(self, _places: Locator | None) -> Groups:
        call, which = self._calls
        ops = self.trace.kind == Kind.OP
        return named(self.trace, where_known(call, lambda calls: self.trace.tree.nearest(calls, ops))[which])

    def by_annotation(self, _places: Locator | None) -> Groups:
        trace = self.trace
        marks = (trace.kind == Kind.ANNOTATION) & ~trace.matching(r"^ProfilerStep#")
        call, which = self._calls
        return named(trace, where_known(call, lambda calls: trace.tree.nearest(calls, marks))[which])

    def by_module(self, _places: Locator | None) -> Groups:
        trace = self.trace
        mask = (trace.kind == Kind.PYTHON) & trace.where_name(lambda name: name.startswith(_MODULE))
        call, which = self._calls
        _, inner = innermost(trace, call, mask)
        chain = [inner]
        while (chain[-1] >= 0).any():
            chain.append(where_known(chain[-1], lambda rows: trace.frames.nearest(rows, mask)))
        names = np.where(np.stack(chain) >= 0, trace.name[np.stack(chain)], -1)
        paths, group = np.unique(names, axis=1, return_inverse=True)
        labels = [
            ".".join(trace.names[name][len(_MODULE) :] for name in reversed(path) if name >= 0)
            for path in paths.T.tolist()
        ]
        return group.ravel()[which], labels

    def by_line(self, places: Locator | None) -> Groups:
        trace = self.trace
        call, which = self._calls
        found = user_places(trace, call)
        _, first, group = np.unique(found.key, axis=1, return_index=True, return_inverse=True)
        labels = [
            _line(trace, item, places) if known >= 0 else ""
            for item, known in zip(found.row[first].tolist(), found.frame[first].tolist(), strict=True)
        ]
        lines, merged = np.unique(np.array(labels), return_inverse=True)
        return merged[group.ravel()][which], lines.tolist()


def _line(trace: Trace, row: int, places: Locator | None) -> str:
    stack = user_stack(trace, row, limit=1) if places is None else places.stack(trace, row)
    return f"{stack[0].file}:{stack[0].line} in {stack[0].function}" if stack else ""


_WAYS: dict[By, Callable[[_Launches, Locator | None], Groups]] = {
    "operator": _Launches.by_operator,
    "module": _Launches.by_module,
    "annotation": _Launches.by_annotation,
    "line": _Launches.by_line,
}
