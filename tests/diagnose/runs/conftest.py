"""What a run's findings cost before calibration, which has its own tests."""

import pytest

from torchtriage.diagnose import calibration


@pytest.fixture(autouse=True)
def uncalibrated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Move no end of an interval."""
    monkeypatch.setattr(calibration, "margins", lambda family: calibration.Margins(1.0, 1.0, 0.0, 0.8))
