"""From edits to savings: scenarios are replayed in batches under several variants of the model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torchtriage.replay.edits import Edit
from torchtriage.replay.quality import Quality
from torchtriage.trace import Trace

__all__ = ["Model", "Prediction", "model"]

Edits = Sequence[Edit]


@dataclass(frozen=True)
class Prediction:
    """What a set of edits saves per steady step (per window without steps).

    ``low_ns <= saving_ns <= high_ns`` : the smallest, the default model's, and the largest saving
    over the variants of the model and the cautious and hopeful factors of the edits. ``naive_ns`` :
    the plain sum of the durations taken away, for contrast. ``inferred_share`` : share of the
    saving that rests on edges that were inferred from timing (0-1).
    """

    saving_ns: float
    low_ns: float
    high_ns: float
    naive_ns: float
    inferred_share: float


class Model:
    """A trace as a graph of work and waiting; make it with :func:`model`."""

    quality: Quality
    step_ns: float
    """Replayed wall time of the mean steady step (the window without steps)."""

    def predict(self, edits: Edits) -> Prediction:
        """Return what one set of edits saves."""
        return self.predict_many([edits])[0]

    def predict_many(self, edit_sets: Sequence[Edits]) -> list[Prediction]:
        """Return what each set of edits saves on its own."""
        raise NotImplementedError

    def cumulative(self, edit_sets: Sequence[Edits]) -> list[float]:
        """Return the saving in ns of the first, the first two, ... sets of edits together."""
        raise NotImplementedError

    def after_ns(self, edits: Edits) -> float:
        """Return the wall time of a step with these edits, in ns, by the default model."""
        raise NotImplementedError


def model(trace: Trace) -> Model:
    """Return the model of a trace, built when first asked for and kept with the trace."""
    raise NotImplementedError
