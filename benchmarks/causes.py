"""Inject faults into a running service and see which cause its alarms name (docs/detection-measured.md).

    python benchmarks/causes.py [--trials 5] [--only GC,recompile]

Each trial is a process of its own that serves requests of several sizes on one processor, first
undisturbed, then with one real fault, until an alarm or the end. With torch, recompilations are
torch.compile's; without it they are counted where torch.compile would count them.
"""

from __future__ import annotations

import argparse
import collections
import gc
import json
import os
import random
import subprocess
import sys
import threading
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torchtriage.operate.monitor import Monitor
from torchtriage.operate.monitor.alert import Alert
from torchtriage.operate.monitor.alert_cause import CAUSES
from torchtriage.operate.monitor.alerts import Detection

BEFORE = 700
AFTER = 600
SIZES = (1, 2, 3, 4, 6, 8)
COMPILE_S = 0.2


def work(amount: float) -> int:
    """Compute for about 25 us per unit."""
    total = 0
    for one in range(int(amount * 350)):
        total += one * one
    return total


class Service:
    """What serves, and what can be made of it."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.alerts: list[Alert] = []
        self.quicker: list[Alert] = []
        self.detection = Detection(self.take, repeat_s=0)
        self.monitor = Monitor(self.detection)
        self.version, self.sizes, self.slower = "1", SIZES, 1.0
        self.inside: Callable[[], None] | None = None
        self.ends: list[Callable[[], object]] = []

    def take(self, alert: Alert) -> None:
        """Keep an alert; one that requests got quicker is no alarm."""
        (self.quicker if alert.quicker else self.alerts).append(alert)

    def request(self) -> None:
        """Serve one request."""
        size = self.random.choice(self.sizes)
        model = self.monitor.observe("model", version=self.version)
        try:
            with model.request(size=size):
                work((5 + 1.5 * size) * self.slower)
                time.sleep(0.0003)  # for a device: where others take the processor, it is at the end of such waits
                work((5 + 1.5 * size) * self.slower)
                if self.inside is not None:
                    self.inside()
        except ValueError:
            pass

    def sometimes(self, what: Callable[[], None], one_in: int) -> None:
        """Do something in one of so many requests."""
        self.inside = lambda: what() if self.random.randrange(one_in) == 0 else None


# -- faults: each changes the service, for real --------------------------------------------


def version_change(service: Service) -> None:
    """Deploy a version that computes more."""
    service.version, service.slower = "2", service.random.uniform(2, 4)


def input_mix(service: Service) -> None:
    """Send larger inputs."""
    times = service.random.choice((5, 8, 12))
    service.sizes = tuple(times * size for size in SIZES[2:])


def host_contention(service: Service) -> None:
    """Let others compute on the same processor."""
    burner = [sys.executable, "-c", "while True: pass"]
    for _ in range(service.random.choice((3, 4, 6))):  # they inherit the processor
        service.ends.append(subprocess.Popen(burner).kill)


def collector(service: Service) -> None:
    """Collect a large heap again and again, within requests or beside them."""
    heap: list[Any] = [[] for _ in range(service.random.choice((150_000, 300_000)))]
    for one in heap:
        one.append(heap)
    if service.random.random() < 0.5:
        service.sometimes(lambda: gc.collect() and None, service.random.choice((2, 5, 10)))
        service.ends.append(heap.clear)
        return
    stop = threading.Event()

    def collect() -> None:
        while not stop.wait(0.02):
            gc.collect()
        heap.clear()

    threading.Thread(target=collect, daemon=True).start()
    service.ends.append(stop.set)


def recompile(service: Service) -> None:
    """Compile again for every new shape, a few times."""
    compiled = compiler()
    shapes = iter(range(5, 5 + service.random.choice((3, 6))))

    def again() -> None:
        shape = next(shapes, None)
        if shape is not None:
            compiled(shape)

    service.sometimes(again, 8)


def compiler() -> Callable[[int], object]:
    """Return what compiles again for each number it is called with."""
    try:
        import torch
    except ImportError:
        frames: Any = types.ModuleType("torch._dynamo.convert_frame")
        frames.FRAME_COMPILE_COUNTER = collections.Counter()
        sys.modules["torch._dynamo.convert_frame"] = frames

        def pretend(_: int) -> None:
            frames.FRAME_COMPILE_COUNTER["frame"] += 1
            end_s = time.thread_time() + COMPILE_S
            while time.thread_time() < end_s:
                work(10)

        return pretend
    torch.set_num_threads(1)
    function = torch.compile(lambda x: (x.sin() + x).softmax(0), backend="aot_eager", dynamic=False)
    function(torch.ones(3))
    return lambda n: function(torch.ones(n))


def errors(service: Service) -> None:
    """Raise in some requests, or all."""

    def fail() -> None:
        raise ValueError

    service.sometimes(fail, service.random.choice((1, 3, 6)))


def stale_metric(service: Service) -> None:
    """Let a metric's reading stop; it had moved for 200."""
    for _ in range(200):
        service.detection.metric("queue", round(service.random.gauss(100, 10), 3))
    depth = round(service.random.gauss(100, 10), 3)
    service.inside = lambda: service.detection.metric("queue", depth)


def held_up(service: Service) -> None:
    """Wait in each request for what nothing watches: a lock, a disk."""
    wait_s = service.random.uniform(0.005, 0.02)
    service.inside = lambda: time.sleep(wait_s)


def more_work(service: Service) -> None:
    """Compute more, without a new version."""
    service.slower = service.random.uniform(2, 4)


# -- what must not alarm ---------------------------------------------------------------------


def quiet(service: Service) -> None:
    """Change nothing."""


def one_pause(service: Service) -> None:
    """Collect a large heap three times."""
    heap: list[Any] = [[] for _ in range(300_000)]
    left = [3]

    def collect() -> None:
        if left[0]:
            left[0] -= 1
            gc.collect()

    service.sometimes(collect, 20)
    service.ends.append(heap.clear)


def known_mix(service: Service) -> None:
    """Send only the largest of the known inputs."""
    service.sizes = SIZES[-2:]


def maintenance(service: Service) -> None:
    """Be slow, as declared."""
    service.slower = 4
    declared = service.detection.maintenance(model="model")
    declared.__enter__()
    service.ends.append(lambda: declared.__exit__(None, None, None))


def same_version(service: Service) -> None:
    """Deploy a version that takes as long."""
    service.version = "2"


FAULTS: dict[str, tuple[str, Callable[[Service], None]]] = {
    "version change": ("version change", version_change),
    "input mix": ("input mix", input_mix),
    "host contention": ("host contention", host_contention),
    "GC": ("GC", collector),
    "recompile": ("recompile", recompile),
    "errors": ("errors", errors),
    "stale metric": ("stale metric", stale_metric),
    "waits for a lock": ("unknown", held_up),
    "more work": ("unknown", more_work),
    "nothing": ("", quiet),
    "three GC pauses": ("", one_pause),
    "largest known inputs": ("", known_mix),
    "declared maintenance": ("", maintenance),
    "equal new version": ("", same_version),
}


def trial(fault: str, seed: int) -> dict[str, Any]:
    """Serve, inject, and return the first alarm after that."""
    if hasattr(os, "sched_setaffinity"):
        allowed = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {allowed[seed % len(allowed)]})
    service = Service(seed)
    if fault == "recompile":
        compiler()  # torch starts up
    for _ in range(BEFORE):
        service.request()
    time.sleep(0.1)
    n_before = len(service.alerts)
    FAULTS[fault][1](service)
    try:
        for _ in range(AFTER):
            service.request()
            if len(service.alerts) > n_before:
                break
    finally:
        for end in service.ends:
            end()
    service.inside = None
    service.monitor.close()
    alerts = service.alerts[n_before:]
    first = alerts[0] if alerts else None
    return {
        "n_before": n_before,
        "n_quicker": len(service.quicker),
        "cause": first.cause if first else "",
        "kind": first.kind if first else "",
        "shares": first.shares if first else {},
        "facts": first.facts if first else {},
    }


def main() -> None:
    """Run all trials and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default=",".join(FAULTS))
    parser.add_argument("--verbose", action="store_true")
    parser.add_argument("--child", nargs=2, metavar=("FAULT", "SEED"))
    options = parser.parse_args()
    if options.child:
        print(json.dumps(trial(options.child[0], int(options.child[1]))))
        return
    named = ("", *CAUSES)
    short = ["no alarm", *CAUSES]
    print("| injected | " + " | ".join(short) + " |")
    print("|:--" + "|--:" * len(short) + "|")
    right = faults = calm = controls = early = quicker = 0
    for fault in options.only.split(","):
        counts: collections.Counter[str] = collections.Counter()
        for at in range(options.trials):
            told = run(fault, options.seed + at)
            counts[told["cause"]] += 1
            early += told["n_before"]
            quicker += told["n_quicker"]
            if options.verbose:
                print(fault, told, file=sys.stderr)
        wanted = FAULTS[fault][0]
        if wanted:
            right += counts[wanted]
            faults += options.trials
        else:
            calm += counts[""]
            controls += options.trials
        cells = [f"**{counts[one]}**" if counts[one] and one == wanted else str(counts[one] or "") for one in named]
        print(f"| {fault} | " + " | ".join(cells) + " |", flush=True)
    print(f"\n{right} of {faults} faults told with their cause; {calm} of {controls} controls quiet;")
    print(f"{early} alarms while nothing was injected yet; {quicker} times requests got quicker.")


def run(fault: str, seed: int) -> dict[str, Any]:
    """Return what a process of its own says."""
    command = [sys.executable, str(Path(__file__)), "--child", fault, str(seed)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    if done.returncode:
        sys.exit(f"{fault}, seed {seed}: {done.stderr[-2000:]}")
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return told


if __name__ == "__main__":
    main()
