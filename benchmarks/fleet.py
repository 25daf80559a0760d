"""A fleet of simulated devices through a real Redis: loss, lag, delay of alarms, and processor time as it grows.

    python benchmarks/fleet.py [--devices 50,200,800] [--seconds 60] [--rate 100]
    python benchmarks/fleet.py --replay FOLDER [--hours 6]

The first starts a Redis server, sends what so many devices would (by ``RedisStream``'s own code, once a second each),
kills and restarts ``torchtriage monitor consume`` on the way, makes one device slow, and prints one line per size of
the fleet. Processor time is the consumer's own, so that what else runs on the machine matters little.

The second asks how often the detector is wrong on latencies that were recorded: the folder holds CSV files with
``latency_us``, ``size`` and ``ok``, and beside each a JSON file of its faults, which are left out. Devices get
stretches of one recording each, all share a load that swings.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from sink_troubles import free_port

from torchtriage.operate.fleet.peer_detector import WINDOW_S, Contact, PeerDetector
from torchtriage.operate.monitor import RedisStream
from torchtriage.operate.monitor.batch_sink import RequestRecord

SLOWER = 1.5


@contextlib.contextmanager
def redis_server(folder: str) -> Iterator[str]:
    """Run a Redis server of our own."""
    port = free_port()
    command = [shutil.which("redis-server") or "redis-server", "--port", str(port), "--save", ""]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL) as process:
        time.sleep(1)
        yield f"redis://127.0.0.1:{port}"
        process.terminate()


class Devices:
    """What a number of devices send, each once a second, from one process and thread."""

    def __init__(self, url: str, n: int, rate: int) -> None:
        self.rate, self.draw = rate, random.Random(3)
        self.outlets = [RedisStream(url, device=f"cam-{at:04}", max_entries=200_000) for at in range(n)]
        self.own = [math.exp(self.draw.gauss(0, 0.15)) for _ in range(n)]
        self.sent = [0] * n
        self.slow_from_s = math.inf
        # durations to draw from: as good as random, and quick
        self.pool = [int(8e6 * math.exp(self.draw.gauss(0, 0.3))) for _ in range(50_000)]
        self.late_s = 0.0

    def run(self, seconds: float) -> None:
        """Send for so long."""
        start_s = time.time()
        n = len(self.outlets)
        for at in range(round(seconds * n)):
            due_s = start_s + at / n
            self.late_s = max(self.late_s, time.time() - due_s)
            time.sleep(max(due_s - time.time(), 0))
            self.send(at % n, time.time())

    def send(self, device: int, now_s: float) -> None:
        """Send a device's last second."""
        times = self.own[device] * (SLOWER if device == 0 and now_s - 1 >= self.slow_from_s else 1.0)
        at = self.draw.randrange(len(self.pool) - self.rate)
        records = [
            RequestRecord("detector", "1", round(now_s - 1 + i / self.rate, 6), int(took * times), 1 + i % 8)
            for i, took in enumerate(self.pool[at : at + self.rate])
        ]
        outlet = self.outlets[device]
        outlet.first = self.sent[device]
        outlet.send(records)
        self.sent[device] += self.rate


class Consumer:
    """``torchtriage monitor consume`` as a process of its own."""

    def __init__(self, url: str, folder: str) -> None:
        command = [sys.executable, "-m", "torchtriage", "monitor", "consume", "--redis", url, "--port", "0"]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=folder)
        assert self.process.stderr is not None
        self.url = self.process.stderr.readline().split()[-1]
        self.alerts: list[tuple[float, str]] = []
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        for line in self.process.stderr or ():
            self.alerts.append((time.time(), line.strip()))

    def value(self, name: str) -> float:
        """Return one of its metrics, 0 where it is not there."""
        with urllib.request.urlopen(self.url, timeout=30) as answer:
            found = re.search(rf"^torchtriage_{re.escape(name)} (\S+)$", answer.read().decode(), re.M)
        return float(found[1]) if found else 0.0

    def cpu_s(self) -> float:
        """Return the processor time it has taken."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def through_redis(n: int, rate: int, seconds: float) -> dict[str, Any]:
    """Run one size of the fleet; return what is to be told."""
    with tempfile.TemporaryDirectory() as folder, redis_server(folder) as url:
        devices = Devices(url, n, rate)
        consumer = Consumer(url, folder)
        sender = threading.Thread(target=devices.run, args=(seconds,))
        began_s = time.time()
        sender.start()
        time.sleep(seconds * 0.2)
        consumer.process.kill()  # and nothing reads for a while
        consumer.process.wait()
        time.sleep(3)
        consumer = Consumer(url, folder)
        restarted_s, before_s = time.time(), consumer.cpu_s()
        lags = []
        caught_up_s = math.nan
        while sender.is_alive():
            time.sleep(1)
            lags.append(consumer.value("fleet_lag_seconds"))
            if math.isnan(caught_up_s) and time.time() - restarted_s > 3 and lags[-1] < 1:
                caught_up_s = time.time() - restarted_s
                lags.clear()
            if math.isinf(devices.slow_from_s) and time.time() - began_s > seconds * 0.65:
                devices.slow_from_s = time.time()
        sender.join()
        sent, end_s = sum(devices.sent), time.time() + 60
        while consumer.value('fleet_records_total{outcome="taken"}') < sent and time.time() < end_s:
            time.sleep(0.5)
        result = {
            "devices": n,
            "sent": sent,
            "taken": int(consumer.value('fleet_records_total{outcome="taken"}')),
            "again": int(consumer.value('fleet_records_total{outcome="again"}')),
            "lost": int(consumer.value('fleet_records_total{outcome="lost"}')),
            "caught up, s": round(caught_up_s, 1),
            "largest lag after, s": max(lags, default=math.nan),
            "told after, s": [
                round(at_s - devices.slow_from_s, 1) for at_s, line in consumer.alerts if "cam-0000: requests" in line
            ],
            "other alarms": sum("cam-0000: requests" not in line for _, line in consumer.alerts),
            "sender late, s": round(devices.late_s, 1),
            "processor, us a record": round((consumer.cpu_s() - before_s) / (sent * 0.8) * 1e6, 2),
            "share of a core": round((consumer.cpu_s() - before_s) / (time.time() - restarted_s), 3),
            "load": os.getloadavg()[0],
        }
        consumer.process.send_signal(signal.SIGTERM)
        consumer.process.wait()
        for outlet in devices.outlets:
            outlet.release()
        return result


# -- recorded latencies ---------------------------------------------------------------------------


def levels(folder: Path, half: int, n: int) -> list[Any]:
    """Return each recording as means of ``n`` healthy requests, cut as the detector does, by sizes' medians."""
    found = []
    for path in sorted(folder.glob("*.csv"))[half::2]:
        table = np.genfromtxt(path, delimiter=",", names=True)
        good = (table["ok"] == 1) & (table["latency_us"] > 0)
        for fault in json.loads(path.with_suffix(".json").read_text())["faults"]:
            if not fault.get("benign"):
                good[fault["start"] : fault["end"] + 50] = False
        good[:600] = False
        logs, sizes = np.log(table["latency_us"][good]), table["size"][good]
        for size in np.unique(sizes):
            logs[sizes == size] -= np.median(logs[sizes == size])
        cut = np.clip(logs, -2, 2)
        found.append(cut[: len(cut) // n * n].reshape(-1, n).mean(axis=1))
    return found


def replayed(
    recordings: list[Any], *, n: int, hours: float, faults: dict[int, tuple[int, float]], seed: int = 0
) -> list[tuple[int, str]]:
    """Return windows and devices of alarms; ``faults`` : by device, the window and the factor, for a minute."""
    rng = np.random.default_rng(seed)
    detector = PeerDetector()
    devices = [f"cam-{at:04}" for at in range(n)]
    own = rng.normal(0, 0.15, n)
    which = [recordings[rng.integers(len(recordings))] for _ in devices]
    lengths = np.array([len(one) for one in which])
    at = (rng.random(n) * lengths).astype(int)
    detector.state.contacts.update({device: Contact(0.0) for device in devices})
    detector.advance(0.0)
    cells = [detector._cell(device, "detector", "1") for device in devices]
    alarms = []
    for window in range(int(hours * 3600 / WINDOW_S)):
        # mostly in order: what disturbs a machine lasts
        away = (rng.random(n) < 0.05) | (at + 1 >= lengths)
        at = np.where(away, (rng.random(n) * lengths).astype(int), at + 1)
        load = 0.3 * math.sin(window / 1800 * 2 * math.pi)
        for index, cell in enumerate(cells):
            begin, factor = faults.get(index, (math.inf, 1.0))
            slower = math.log(factor) if begin <= window < begin + 60 / WINDOW_S else 0.0
            cell.n, cell.total = 100, 100 * (own[index] + load + slower + which[index][at[index]])
        for contact in detector.state.contacts.values():
            contact.last_s = window * WINDOW_S
        alarms += [(window, alarm.device) for alarm in detector.advance((window + 1) * WINDOW_S)]
    return alarms


def recorded(folder: Path, hours: float) -> None:
    """Print false alarms, and delays of faults, on each half of the recordings."""
    for half in (0, 1):
        recordings = levels(folder, half, 100)
        alarms = replayed(recordings, n=200, hours=hours, faults={})
        days = 200 * hours / 24
        print(f"half {half}: {len(alarms)} alarms in {days:.0f} device-days, {len(alarms) / days:.2f} a device-day")
        for factor in (2.0, 1.5, 1.3, 1.2):
            faults = {5 * k: (600 + 60 * k, factor) for k in range(40)}
            told = replayed(recordings, n=200, hours=3000 / 3600, faults=faults, seed=5)
            delays = []
            for device, (begin, _) in faults.items():
                hits = [w - begin + 1 for w, name in told if name == f"cam-{device:04}" and begin <= w < begin + 60]
                delays += hits[:1]
            delays.sort()
            middle, most = (delays[len(delays) // 2], delays[-1]) if delays else ("-", "-")
            print(f"  {factor} x: {len(delays)} of {len(faults)} told, after {middle} windows (median), {most} (most)")


def main() -> None:
    """Run what the options ask for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", default="50,200,800")
    parser.add_argument("--rate", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=90)
    parser.add_argument("--replay", type=Path)
    parser.add_argument("--hours", type=float, default=6)
    given = parser.parse_args()
    if given.replay:
        recorded(given.replay, given.hours)
        return
    for n in given.devices.split(","):
        print(json.dumps(through_redis(int(n), given.rate, given.seconds)), flush=True)


if __name__ == "__main__":
    main()
