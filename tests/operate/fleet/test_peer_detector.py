"""One device against its peers, one version across devices: what is told, and what is not."""

import math
import random
import re

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
        self.updates, self.ends = [], []  # of alarms

    def run(self, windows):
        """Return the alarms that begin."""
        alarms = []
        for _ in range(windows):
            for device in self.devices:
                if device not in self.silent:
                    records = [self.record(device) for _ in range(self.rate)]
                    alarms += self.detector.add(device, records, self.windows * WINDOW_S)
            self.windows += 1
        self.ends += [alarm for alarm in alarms if alarm.ended]
        self.updates += [alarm for alarm in alarms if not alarm.ended and alarm.at_s > alarm.since_s]
        return [alarm for alarm in alarms if alarm.at_s == alarm.since_s and not alarm.ended]

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


@pytest.mark.parametrize("n", [2, 5])
def test_a_silent_device_is_told_in_a_small_fleet(n):
    fleet = Fleet(n=n)
    fleet.rate = 1
    fleet.run(30)
    fleet.silent = {"cam-1"}
    (alarm,) = fleet.run(60)
    assert (alarm.kind, alarm.device) == ("silent-device", "cam-1")
    assert f"while {n - 1} of {n} devices are sending" in alarm.message


def test_quiet_on_a_fleet_that_comes_back_one_by_one_after_hours():
    fleet = Fleet(n=5)
    fleet.rate = 1
    fleet.run(30)
    for second, device in enumerate(fleet.devices[:3]):
        assert fleet.detector.add(device, [fleet.record(device)], (5_000 + second) * WINDOW_S) == []


def test_most_of_a_fleet_that_stays_silent_is_told_after_an_hour():
    fleet = Fleet(n=20)
    fleet.rate = 1
    fleet.run(30)
    fleet.silent = set(fleet.devices[:12])
    assert fleet.run(3_600) == []
    told = fleet.run(700)
    assert {(alarm.kind, alarm.device) for alarm in told} == {("silent-device", name) for name in fleet.silent}


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


@pytest.mark.parametrize("share", [0.06, 1.0])
def test_a_version_that_fails_more_is_reported(fleet, share):
    for device in fleet.devices[:6]:
        fleet.version[device] = "2"
        fleet.fails[device] = share
    kinds = {(alarm.kind, alarm.version) for alarm in fleet.run(150)}
    assert ("failing-version", "2") in kinds
    assert "slow-version" not in {kind for kind, _ in kinds}


def test_a_device_with_few_requests_is_judged_by_as_many(fleet):
    fleet.rate = 2
    fleet.slower["cam-3"] = 2.0
    alarms = fleet.run(60)
    assert [alarm.device for alarm in alarms] == ["cam-3"]


def test_further_cells_are_not_judged(monkeypatch):
    monkeypatch.setattr("torchtriage.operate.fleet.peer_detector.MAX_CELLS", 3)
    fleet = Fleet(n=5)
    fleet.run(2)
    assert len(list(fleet.detector.cells())) == 3
    assert fleet.detector.n_not_judged == 2 * 2 * RATE


def test_versions_that_a_device_ran_before_make_room(monkeypatch):
    monkeypatch.setattr("torchtriage.operate.fleet.peer_detector.MAX_CELLS", 12)
    fleet = Fleet(n=6)
    fleet.rate = 10
    fleet.silent = {"cam-5"}
    fleet.detector.add("cam-5", [fleet.record("cam-5")], 0.0)
    for version in range(8):
        fleet.version = dict.fromkeys(fleet.devices, str(version))
        fleet.run(2)
        fleet.windows += 3_598
    assert fleet.detector.n_not_judged == 0
    # of a device that is silent all stay
    assert ("cam-5", "1") in {(cell.device, cell.version) for cell in fleet.detector.cells()}


def restored(fleet):
    state = msgspec.json.encode(fleet.detector.snapshot())
    fleet.detector = PeerDetector(msgspec.json.decode(state, type=PeerState))


def test_alarms_and_what_was_learned_outlive_an_upgrade():
    fleet = Fleet(n=14)
    fleet.windows = 8_000
    fleet.run(100)
    for device in fleet.devices[:7]:
        fleet.version[device], fleet.slower[device] = "2", 1.5
    assert ("slow-version", "2") in {(alarm.kind, alarm.version) for alarm in fleet.run(200)}
    fleet.silent = {"cam-13"}
    fleet.ends.clear()
    stored = msgspec.to_builtins(fleet.detector.snapshot())
    for cell in stored["cells"]:  # as the first release stored them
        del cell["asked"], cell["n_judged"]
    fleet.detector = PeerDetector(msgspec.convert(stored, PeerState))
    begun = fleet.run(200)
    assert [alarm for alarm in begun if alarm.kind != "silent-device"] == []
    assert [alarm for alarm in fleet.ends if alarm.kind.endswith("-version")] == []
    assert "cam-13" in {cell.device for cell in fleet.detector.cells()}


def test_a_share_of_failures_is_learned_over_all_windows_also_those_without_a_level():
    fleet = Fleet(n=6)
    fleet.fails = dict.fromkeys(fleet.devices, 1.0)
    fleet.run(20)
    fleet.fails = dict.fromkeys(fleet.devices, 0.0)
    fleet.run(10)
    # of 29 windows that have ended 20 failed
    assert {round(cell.fail_share, 3) for cell in fleet.detector.cells()} == {round(20 / 29, 3)}


def test_a_slow_device_is_told_again_as_it_gets_slower_and_when_it_is_over(fleet):
    fleet.slower["cam-3"] = 1.5
    (alarm,) = fleet.run(20)
    fleet.slower["cam-3"] = 3.0
    restored(fleet)
    assert fleet.run(300) == []
    assert 1 <= len(fleet.updates) <= 4  # as it changes, not each window
    assert fleet.updates[-1].ratio == pytest.approx(3.0, rel=0.1)
    assert re.search(r"(1[7-9]|2[01])\d% longer than before, .*, for \d+ (s|min)", fleet.updates[-1].message)
    assert {update.since_s for update in fleet.updates} == {alarm.at_s}
    assert fleet.ends == []
    fleet.slower["cam-3"] = 1.0
    restored(fleet)
    fleet.run(60)
    (end,) = fleet.ends
    assert (end.kind, end.device, end.since_s) == ("slow-device", "cam-3", alarm.at_s)
    assert end.ratio == pytest.approx(3.0, rel=0.15)
    assert re.search(r"over after 6 min, peak \+(19|20|21)\d%", end.message)


def test_what_lasts_for_an_hour_is_told_as_lasting_and_ends_when_the_device_is_as_before(fleet, monkeypatch):
    monkeypatch.setattr("torchtriage.operate.fleet.peer_detector.NEW_NORMAL", 120)
    fleet.slower["cam-3"] = 1.5
    (alarm,) = fleet.run(400)
    (lasting,) = [update for update in fleet.updates if update.lasting]
    assert lasting.ratio == pytest.approx(1.5, rel=0.1)
    assert fleet.ends == []
    restored(fleet)
    fleet.slower["cam-3"] = 1.0
    fleet.run(100)
    assert [(end.device, end.since_s) for end in fleet.ends] == [("cam-3", alarm.at_s)]


def test_the_other_alarms_of_devices_end(fleet):
    fleet.fails["cam-1"] = 0.4
    fleet.silent = {"cam-2"}
    assert sorted(alarm.kind for alarm in fleet.run(120)) == ["failing-device", "silent-device"]
    assert fleet.ends == []
    fleet.fails["cam-1"], fleet.silent = 0.002, set()
    fleet.run(60)
    assert sorted(end.kind for end in fleet.ends) == ["failing-device", "silent-device"]
    assert re.search(r", peak 4\d\.\d%", next(end.message for end in fleet.ends if end.kind == "failing-device"))


def test_a_device_that_was_always_slow_is_on_until_it_is_repaired(fleet):
    fleet.devices.append("new")
    fleet.own["new"], fleet.version["new"], fleet.slower["new"] = 0.0, "1", 4.0
    fleet.fails["new"], fleet.sizes["new"] = 0.002, (1, 8)
    (alarm,) = fleet.run(300)
    assert fleet.ends == []
    fleet.slower["new"] = 1.0
    fleet.run(900)
    assert [(end.device, end.since_s) for end in fleet.ends] == [("new", alarm.at_s)]


def test_a_version_that_is_gone_ends_its_alarm(fleet):
    for device in fleet.devices[:6]:
        fleet.version[device], fleet.slower[device] = "2", 1.4
    (alarm,) = fleet.run(120)
    assert (alarm.kind, alarm.version, alarm.other) == ("slow-version", "2", "1")
    for device in fleet.devices:
        fleet.version[device], fleet.slower[device] = "1", 1.0
    fleet.run(700)
    assert [end.kind for end in fleet.ends] == ["slow-version"]


@pytest.mark.parametrize("kind", ["slow-device", "failing-device"])
def test_a_device_whose_version_is_replaced_ends_its_alarm(fleet, kind):
    fleet.rate = 10
    if kind == "slow-device":
        fleet.slower["cam-3"] = 3.0
    else:
        fleet.fails["cam-3"] = 0.5
    assert kind in {alarm.kind for alarm in fleet.run(30)}
    fleet.slower["cam-3"], fleet.fails["cam-3"] = 1.0, 0.002
    fleet.version = dict.fromkeys(fleet.devices, "2")
    fleet.run(620)
    end = next(end for end in fleet.ends if end.kind == kind)
    assert end.message.endswith("1 had no requests lately")
    assert {cell.ratio for cell in fleet.detector.cells()} == {1.0}


def test_a_device_that_is_dead_for_a_day_is_forgotten(fleet):
    fleet.silent = {"cam-2"}
    fleet.run(60)
    others = [device for device in fleet.devices if device != "cam-2"]
    alarms = []
    for hour in range(1, 27):
        at_s = 300 + hour * 3_000.0
        for device in others:
            alarms += fleet.detector.add(device, [fleet.record(device)], at_s)
    assert [alarm.device for alarm in alarms if alarm.ended and alarm.kind == "silent-device"] == []
    for hour in range(27, 33):
        for device in others:
            alarms += fleet.detector.add(device, [fleet.record(device)], 300 + hour * 3_000.0)
    (end,) = [alarm for alarm in alarms if alarm.ended and alarm.kind == "silent-device"]
    assert "forgotten" in end.message
