"""One device against its peers, one version across devices: what is told, and what is not."""

import math
import random

import msgspec
import pytest

from torchtriage.operate.fleet.peer_detector import WINDOW_S, PeerDetector, PeerState
from torchtriage.operate.monitor.batch_sink import RequestRecord

RATE = 30  # requests of a window
TOOK_NS = 8_000_000


class Fleet:
    """Devices that differ, under a load that swings, with noise of 30 %."""

    def __init__(self, n=12, seed=1):
        self.draw = random.Random(seed)
        self.detector = PeerDetector()
        self.devices = [f"cam-{at}" for at in range(n)]
        self.own = {device: self.draw.gauss(0, 0.2) for device in self.devices}
        self.version = dict.fromkeys(self.devices, "1")
        self.slower = dict.fromkeys(self.devices, 1.0)
        self.fails = dict.fromkeys(self.devices, 0.002)
        self.sizes = dict.fromkeys(self.devices, (1, 8))
        self.silent = set()
        self.load, self.rate = 1.0, RATE
        self.windows = 0

    def run(self, windows):
        alarms = []
        for _ in range(windows):
            for device in self.devices:
                if device not in self.silent:
                    records = [self.record(device) for _ in range(self.rate)]
                    alarms += self.detector.add(device, records, self.windows * WINDOW_S)
            self.windows += 1
        return alarms

    def record(self, device):
        draw, size = self.draw, self.draw.choice(self.sizes[device])
        took = TOOK_NS * size * self.load * self.slower[device] * math.exp(self.own[device] + draw.gauss(0, 0.3))
        error = "ValueError" if draw.random() < self.fails[device] else ""
        return RequestRecord("detector", self.version[device], 0.0, int(took), size, error)


@pytest.fixture(scope="module")
def settled():
    fleet = Fleet()
    assert fleet.run(200) == []
    return msgspec.json.encode(fleet.detector.snapshot()), fleet.windows, fleet.draw.getstate()


@pytest.fixture
def fleet(settled):
    """A fleet that has run for a while, its detector read back from what was stored."""
    state, windows, draw = settled
    fleet = Fleet()
    fleet.draw.setstate(draw)
    fleet.detector = PeerDetector(msgspec.json.decode(state, type=PeerState))
    fleet.windows = windows
    return fleet


def test_a_device_that_gets_slow_is_told_once_within_eight_windows(fleet):
    fleet.slower["cam-3"] = 1.5
    (alarm,) = fleet.run(60)
    assert (alarm.kind, alarm.device, alarm.version) == ("slow-device", "cam-3", "1")
    assert alarm.at_s - 200 * WINDOW_S <= 8 * WINDOW_S
    assert 1.2 < alarm.ratio < 1.7
    (cell,) = (cell for cell in fleet.detector.cells() if cell.ratio != 1)
    assert cell.ratio == pytest.approx(1.5, rel=0.1)
    fleet.slower["cam-3"] = 1.0
    assert fleet.run(60) == []
    assert {cell.ratio for cell in fleet.detector.cells()} == {1.0}


def test_a_device_that_gets_slow_again_is_told_again(fleet):
    told = []
    for _ in range(3):
        fleet.slower["cam-3"] = 1.6
        told += fleet.run(40)
        fleet.slower["cam-3"] = 1.0
        told += fleet.run(80)
    assert [alarm.device for alarm in told] == ["cam-3"] * 3


def test_quiet_what_all_devices_have_in_common(fleet):
    fleet.load = 3.0
    assert fleet.run(60) == []


def test_quiet_on_larger_requests_of_one_device(fleet):
    fleet.sizes["cam-3"] = (8,)
    assert fleet.run(60) == []


def test_quiet_on_a_device_that_gets_quicker(fleet):
    fleet.slower["cam-3"] = 0.5
    assert fleet.run(60) == []


def test_a_device_that_was_always_slow_is_told_when_it_is_known(fleet):
    fleet.devices.append("cam-99")
    fleet.own["cam-99"], fleet.slower["cam-99"] = 0.0, 5.0
    fleet.version["cam-99"], fleet.fails["cam-99"], fleet.sizes["cam-99"] = "1", 0.0, (1, 8)
    (alarm,) = fleet.run(60)
    assert (alarm.kind, alarm.device) == ("slow-device", "cam-99")
    assert "since it appeared" in alarm.message


def test_a_device_whose_requests_fail_is_told_and_a_fault_of_all_is_not(fleet):
    fleet.fails["cam-5"] = 0.3
    (alarm,) = fleet.run(30)
    assert (alarm.kind, alarm.device) == ("failing-device", "cam-5")
    assert alarm.ratio == pytest.approx(0.3, abs=0.25)
    fleet.fails["cam-5"] = 0.002
    assert fleet.run(30) == []
    fleet.fails = dict.fromkeys(fleet.devices, 0.3)
    assert fleet.run(30) == []


def test_a_silent_device_is_told_and_a_silent_fleet_is_not(fleet):
    fleet.silent = {"cam-2"}
    (alarm,) = fleet.run(60)
    assert (alarm.kind, alarm.device) == ("silent-device", "cam-2")
    fleet.silent = set()
    assert fleet.run(5) == []
    fleet.silent = set(fleet.devices) - {"cam-0"}
    assert fleet.run(200) == []


def test_a_slower_version_is_told_once_whoever_runs_it(fleet):
    for device in fleet.devices[:6]:
        fleet.version[device] = "2"
        fleet.slower[device] = 1.25
    (alarm,) = fleet.run(150)
    assert (alarm.kind, alarm.device, alarm.version) == ("slow-version", "", "2")
    assert alarm.ratio == pytest.approx(1.25, rel=0.1)
    assert alarm.message.startswith("2 takes ")


def test_quiet_on_a_version_that_is_equal_or_quicker(fleet):
    for device in fleet.devices[:6]:
        fleet.version[device] = "2"
    for device in fleet.devices[6:9]:
        fleet.version[device] = "3"
        fleet.slower[device] = 0.7
    assert fleet.run(150) == []


def test_a_version_that_fails_more_is_told(fleet):
    for device in fleet.devices[:6]:
        fleet.version[device] = "2"
        fleet.fails[device] = 0.06
    kinds = {(alarm.kind, alarm.version) for alarm in fleet.run(150)}
    assert ("failing-version", "2") in kinds


def test_a_device_with_few_requests_is_judged_by_as_many(fleet):
    fleet.rate = 2
    fleet.slower["cam-3"] = 2.0
    alarms = fleet.run(60)
    assert [alarm.device for alarm in alarms] == ["cam-3"]


def test_further_cells_are_refused_and_counted(monkeypatch):
    monkeypatch.setattr("torchtriage.operate.fleet.peer_detector.MAX_CELLS", 3)
    fleet = Fleet(n=5)
    fleet.run(2)
    assert len(list(fleet.detector.cells())) == 3
    assert fleet.detector.n_refused == 2 * 2 * RATE
