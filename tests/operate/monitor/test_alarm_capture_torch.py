"""A real recording of a bad moment, made by the profiler and judged by another process."""

import time

import pytest

import torchtriage as tt
from torchtriage.operate.monitor import Monitor
from torchtriage.operate.monitor.alerts import Detection

pytestmark = pytest.mark.torch


def test_a_model_that_gets_slow_is_recorded_once_and_its_alert_says_why(tmp_path, monkeypatch):
    import torch

    monkeypatch.delattr("os.setpriority")  # on a busy machine it would not come to its turn
    layer, rows = torch.nn.Linear(16, 16), torch.ones(64, 16)
    with tt.sample(tmp_path, every_s=None, heavy=True) as sampler:
        told = []
        detection = Detection(told.append, repeat_s=0.5, capture=sampler)
        with Monitor(detection) as monitor, torch.inference_mode():

            @monitor.observe("detector", version="2.1")
            def detect(one_by_one):
                if not one_by_one:
                    return layer(rows).sum()
                total = 0.0
                for _ in range(20):
                    for row in rows:  # the anti-pattern: a loop over the elements of a tensor
                        total += layer(row).sum().item()
                return total

            # on a busy machine there may be an alarm of this, too, which is not to be recorded
            capture, detection.capture = detection.capture, None
            for _ in range(700):
                detect(False)
            detection.capture = capture
            end_s = time.monotonic() + 200
            while not any(one.capture for one in told):
                assert time.monotonic() < end_s, (told, vars(detection.capture))
                detect(True)
        (file,) = sampler.files
        after = next(one for one in told if one.capture)
        assert after.capture == str(file)
        assert any("LCH017" in one for one in after.captured), after.captured
        assert after.finding().evidence["kind"] == after.kind
        armed = detection.capture
        assert (armed.n_captured, armed.n_failures) == (1, 0)
        assert sampler.stats.failures == {}
