"""A small model, and what one step computes for nothing."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any


def layers() -> Any:
    """Return a layer, a wide one behind it, inputs of 8 x 50 positions, and labels for the last ten alone."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    labels = torch.randint(0, 2000, (8, 50))
    labels[:, :40] = -100
    return nn.Linear(32, 32), nn.Linear(32, 2000), torch.randn(8, 50, 32), labels


def unread(step: Callable[[], object]) -> list[dict[str, Any]]:
    """Return what one step computes for nothing."""
    from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

    from torchtriage.core.record.operator_probe import OperatorProbe

    probe = OperatorProbe()
    assert probe.start()
    probe.step()
    step()
    found, _ = probe.stop()
    assert sys.getprofile() is None
    assert not _get_current_dispatch_mode_stack()
    return found
