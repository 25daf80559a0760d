"""Replay: the recorded run as a graph of work and waiting, run again with changes.

::

    model = replay.model(trace)           # built once per trace
    if model.quality.accepted:
        one = model.predict([Edit("drop", rows)])
        one.low_ns, one.high_ns           # saving per steady step (or per window without steps)
"""

from torchtriage.diagnose.replay.critical import CriticalPath, CriticalPiece, critical_path
from torchtriage.diagnose.replay.edits import Edit, EditKind
from torchtriage.diagnose.replay.predict import ReplayModel, ReplayPrediction, model
from torchtriage.diagnose.replay.quality import Quality
from torchtriage.diagnose.replay.scenarios import Scenario
from torchtriage.diagnose.replay.what_if import WhatIf, parse_what_if

__all__ = [
    "CriticalPath",
    "CriticalPiece",
    "Edit",
    "EditKind",
    "Quality",
    "ReplayModel",
    "ReplayPrediction",
    "Scenario",
    "WhatIf",
    "critical_path",
    "model",
    "parse_what_if",
]
