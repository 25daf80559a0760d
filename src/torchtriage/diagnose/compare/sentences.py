"""How a cause and a change read: sentences a person can check against the table."""

from __future__ import annotations

from collections.abc import Sequence

from torchtriage.core.names import elide, short_name
from torchtriage.core.units import format_both_ns, format_change_ns, format_ms
from torchtriage.diagnose.compare.result import ChangeCause, Promise, TimeChange


def sentence(cause: ChangeCause, total: TimeChange, per: str) -> str:
    """Return ``DataLoader wait went from 31.0 to 0.4 ms per step (-30.6 of -34.2 ms)``."""
    change = cause.change
    before, after, unit = format_both_ns(change.before_ns, change.after_ns)
    where = "per step" if per == "step" else "in the window"
    return (
        f"{label(cause)} went from {before} to {after} {unit} {where}"
        f" ({format_change_ns(change.delta_ns)} of {format_change_ns(total.delta_ns)})"
    )


def label(cause: ChangeCause) -> str:
    """Return what a cause is about: ``kernels of aten::conv2d``, ``DataLoader wait``."""
    what = _named(cause.what)
    if cause.kind == "replaced":
        what = f"{what} (now {_named(cause.what_after)})"
    if cause.region == "DataLoader":
        text = "DataLoader wait" if cause.of_host else "work of the DataLoader"
    elif cause.region == "the rest":
        idle = cause.time_class != "host"
        text = "GPU idle with nothing to follow" if idle else "time outside every row"
        text = cause.what[0] if cause.what else text
    else:
        text = _of_class(cause, what)
    return f"{text} in {elide(cause.mark, 40)!r}" if cause.mark else text


def promise_saved(promise: Promise) -> str:
    """Return ``55.2 ms of its own time saved (kept)``, or why it is not checked."""
    own = f"of {'its' if len(promise.codes) == 1 else 'their'} own time"
    if promise.measured_ms == promise.step_ms:
        own = "of the step"  # held against all of it, or all that it saved is theirs
    if not promise.checked:
        return f"not checked: no significant change {own}"
    return f"{format_ms(promise.measured_ms)} {own} saved ({promise.outcome})"


def _of_class(cause: ChangeCause, what: str) -> str:
    own = cause.region.partition("#")[2] or cause.region  # "Optimizer.step#SGD.step"
    if cause.region == "wait":
        return f"GPU idle because the host waited in {what or 'a blocking call'}"
    if cause.region == "Python":
        place = f" in {what}" if what else ""
        text = f"Python{place}" if place else "between operators"
        if cause.time_class == "host":
            return text if place else f"time {text}"
        return f"GPU idle while the host {'runs' if place else 'is'} {text}"
    if cause.region and cause.region != "backward":
        what = own
    elif cause.region and what:
        what = f"{what} (backward)"
    elif cause.region:
        what = "backward operators"
    return {
        "compute": f"kernels of {what}",
        "comm_only": f"exposed communication of {what}",
        "copy_only": f"exposed copies of {what}",
        "idle_host_late": f"GPU idle while the host is in {what or 'operators'}",
        "idle_queued": "GPU idle with work queued",
        "idle_unknown": "GPU idle before work whose launch was not recorded",
        "host": what or "operators",
    }[cause.time_class]


def _named(names: Sequence[str]) -> str:
    if not names:
        return ""
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return f"{short_name(names[0], 50)}{more}"
