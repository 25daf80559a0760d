"""What is told: absent where nobody looked, plain whatever was set, summed over all processes."""

import json
import os
import subprocess
import sys
import threading
from collections import Counter
from types import SimpleNamespace

import pytest

from torchtriage.operate.detect import latency_detector
from torchtriage.operate.ladder import Ladder, Mode
from torchtriage.operate.monitor import Detection, JsonLog, Monitor, Prometheus, process_metrics, version_detector
from torchtriage.operate.monitor.batch_sink import BatchSink
from torchtriage.operate.monitor.metrics import METRICS, Exposition, combined
from torchtriage.operate.monitor.workers import WorkerFile, read_folder


def text_of(monitor, values=()):
    monitor.drain()
    return Exposition().render(monitor.state(), values).decode()


# -- what is not known is not told ---------------------------------------------------------


def test_what_no_caller_tells_is_absent():
    with Monitor() as monitor:
        monitor.observe("detector")(abs)(1)
        text = text_of(monitor)
        assert monitor.snapshot()[0].nan_outputs is None
    for name in ("nan_outputs", "input_sizes", "queue_seconds", "errors"):
        assert name not in text
    assert 'inference_in_flight{model="detector",version=""} 0\n' in text


def test_a_caller_who_looks_and_finds_nothing_tells_zero():
    with Monitor() as monitor:
        with monitor.observe("detector").request(size=3, queued_ns=0) as request:
            request.nan = False
        text = text_of(monitor)
    assert "nan_outputs_total{" in text
    assert monitor.snapshot()[0].nan_outputs == 0
    assert 'queue_seconds_count{model="detector",version=""} 1\n' in text
    assert 'input_sizes{model="detector",version=""} 1\n' in text


def test_requests_that_only_queued_are_sampled_like_others(tmp_path):
    log = JsonLog(tmp_path / "log", sample=0.0)
    with Monitor(log) as monitor:
        model = monitor.observe("detector")
        for _ in range(50):
            with model.request(queued_ns=10) as request:
                request.nan = False
        with model.request(queued_ns=10) as request:
            request.nan = True
    (line,) = (tmp_path / "log").read_text().splitlines()
    assert json.loads(line)["nan"] is True


# -- whatever was set ----------------------------------------------------------------------


class Tensor:
    """Has a number and cannot be hashed or written, like a tensor; or has none."""

    __hash__ = None

    def __init__(self, value):
        self.value = value

    def __int__(self):
        return int(self.value)

    def __bool__(self):
        return bool(int(self.value))


class Kept:
    def __init__(self):
        self.rows = []

    def start(self, monitor):
        pass

    def offer(self, model, rows):
        self.rows += rows

    def close(self, deadline_s):
        pass


def test_tensors_and_exceptions_become_numbers_and_names(tmp_path):
    kept, log = Kept(), JsonLog(tmp_path / "log")
    with Monitor(kept, log, Detection()) as monitor:
        model = monitor.observe("detector", version=2.1)
        with model.request(size=Tensor(8), queued_ns=Tensor(5)) as request:
            request.nan = Tensor(1)
        with model.request(size=[1, 2], queued_ns="long") as request:
            request.nan = Tensor("?")
            request.error = ValueError("no boxes")
        with model.request() as request:
            request.error = TimeoutError
        text = text_of(monitor)
    assert [row[2:] for row in kept.rows] == [
        (8, ("", 5, True, None)),
        (None, ("ValueError", None, None, None)),
        (None, ("TimeoutError", None, None, None)),
    ]
    assert monitor.n_sink_failures == 0
    assert 'errors_total{model="detector",version="2.1",error="ValueError"} 1\n' in text
    assert len((tmp_path / "log").read_text().splitlines()) == 3


def test_a_sum_of_weeks_still_shows_a_millisecond():
    with Monitor() as monitor:
        model = monitor.observe("detector")
        model.aggregate.durations.sum_ns = 10_000_000 * 10**9 + 1_000_000
        text = text_of(monitor)
    assert 'duration_seconds_sum{model="detector",version=""} 10000000.001\n' in text


# -- devices, compilers, ladders, alarms, outlets ------------------------------------------


def told(prefix):
    found = [one for one in process_metrics.read() if one[0].startswith(prefix)]
    return sorted(found, key=lambda one: (one[0], *one[1].values()))


def test_devices_have_the_names_they_have_on_the_machine(monkeypatch):
    cuda = SimpleNamespace(
        is_initialized=lambda: True,
        device_count=lambda: 2,
        memory_allocated=lambda at: 10 + at,
        memory_reserved=lambda at: 20,
        get_device_properties=lambda at: SimpleNamespace(total_memory=100),
        utilization=lambda at: 70 + at,
    )
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3, 5")
    assert told("device_allocated") == [
        ("device_allocated_bytes", {"device": "3"}, 10),
        ("device_allocated_bytes", {"device": "5"}, 11),
    ]
    assert told("device_utilization")[1] == ("device_utilization_ratio", {"device": "5"}, 0.71)
    for unusable in ("", "3", "3,5,7", "3,,5", "3,3"):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", unusable)
        assert [one[1]["device"] for one in told("device_reserved")] == ["0", "1"]


def test_what_nvml_tells_is_of_the_device_that_torch_means(monkeypatch):
    cuda = SimpleNamespace(
        is_initialized=lambda: True,
        device_count=lambda: 2,
        get_device_properties=lambda at: SimpleNamespace(total_memory=100, uuid=f"u{at}"),
        power_draw=lambda at: 310_500,
        temperature=lambda at: 61 + at,
    )
    nvml = SimpleNamespace(
        nvmlInit=lambda: None,
        nvmlDeviceGetHandleByUUID={"GPU-u0": "a", "GPU-u1": "b"}.__getitem__,
        nvmlDeviceGetTotalEccErrors=lambda handle, kind, counter: {"b": 3}[handle],  # the first has no ECC
        NVML_MEMORY_ERROR_TYPE_UNCORRECTED=1,
        NVML_VOLATILE_ECC=0,
    )
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert told("device_power")[0] == ("device_power_watts", {"device": "0"}, 310.5)
    assert told("device_temperature")[1] == ("device_temperature_celsius", {"device": "1"}, 62)
    assert told("device_ecc") == [("device_ecc_errors_total", {"device": "1"}, 3)]


def test_memory_and_processor_time_of_the_process_are_told():
    (memory,), (cpu,) = told("process_resident"), told("process_cpu")
    assert memory[2] > 5_000_000
    sum(range(1_000_000))
    assert told("process_cpu")[0][2] > cpu[2] > 0


def test_caches_are_told_apart_and_reading_adds_nothing_to_dynamo(monkeypatch):
    counters = {"inductor": Counter(fxgraph_cache_hit=4, fxgraph_cache_miss=1)}
    monkeypatch.setitem(sys.modules, "torch._dynamo.utils", SimpleNamespace(counters=counters))
    assert told("compile_cache") == [
        ("compile_cache_hits_total", {"cache": "autograd"}, 0),
        ("compile_cache_hits_total", {"cache": "inductor"}, 4),
        ("compile_cache_misses_total", {"cache": "autograd"}, 0),
        ("compile_cache_misses_total", {"cache": "inductor"}, 1),
    ]
    assert list(counters) == ["inductor"]


def test_a_ladder_is_told_of_as_long_as_it_lives():
    ladder = Ladder("numbers", [Mode("full", abs), Mode("lite", abs)], dry_run=False)
    level = ("ladder_level", {"ladder": "numbers"}, 0)
    assert level in told("ladder")
    ladder.hold("lite", "maintenance")
    assert ("ladder_level", {"ladder": "numbers"}, 1) in told("ladder")
    del ladder
    assert not [one for one in told("ladder") if one[1]["ladder"] == "numbers"]


def test_two_that_tell_of_the_same_are_one_line():
    values = [
        ("ladder_level", {"ladder": "a"}, 1),
        ("ladder_level", {"ladder": "a"}, 0),
        ("monitor_pending", {}, 2),
        ("monitor_pending", {}, 3),
        ("of_another_version", {}, 1),
    ]
    assert combined(values) == [("ladder_level", {"ladder": "a"}, 1), ("monitor_pending", {}, 5)]


def test_alarms_are_counted_from_zero_on_told_or_not():
    detection = Detection(repeat_s=1e9)
    with Monitor(detection) as monitor:
        model = monitor.observe("detector")
        for _ in range(2):
            model.request().__enter__().__exit__(None, None, None)
        monitor.drain()
        kinds = {metric[1]["kind"]: metric[2] for metric in detection.metrics() if metric[0] == "alarms_total"}
        assert kinds == dict.fromkeys(version_detector.KINDS, 0)
        for _ in range(3):
            for row in range(600):
                with model.request() as request:
                    request.error = "rejected" * (row >= 598)
            monitor.drain()
        kinds = {metric[1]["kind"]: metric[2] for metric in detection.metrics() if metric[0] == "alarms_total"}
    assert kinds["missing"] >= 1
    assert detection.n_sent <= 7


def test_every_kind_of_alarm_is_counted():
    import ast
    import inspect

    kinds = set()
    for node in ast.walk(ast.parse(inspect.getsource(latency_detector))):
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") in ("_alarm", "_too_many"):
            kinds.add(node.args[0])
        elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]).startswith("(kind, "):
            # one of several kinds, chosen just before
            choices = [node.value.body, node.value.orelse] if isinstance(node.value, ast.IfExp) else [node.value]
            kinds |= {choice.elts[0] for choice in choices}
    assert {node.value for node in kinds if isinstance(node, ast.Constant)} == set(latency_detector.KINDS)


def test_an_outlet_that_sends_nothing_is_seen():
    class Refuses(BatchSink):
        wait_s = 0.01

        def send(self, records):
            raise ConnectionError

    outlet = Refuses(max_pending=10)
    listener = Prometheus(port=0)
    with Monitor(listener, outlet) as monitor:
        call = monitor.observe("detector")(abs)
        for _ in range(25):
            call(1)
        monitor.drain()
        text = listener.text().decode()
    assert 'outlet_records_total{outlet="Refuses",outcome="dropped"} 15\n' in text
    assert 'outlet_pending{outlet="Refuses"} 10\n' in text


# -- several processes ---------------------------------------------------------------------

VALUES = [
    ("monitor_requests_total", {"outcome": "sent"}, 5),
    ("monitor_pending", {}, 2),
    ("device_allocated_bytes", {"device": "0"}, 100),
    ("device_utilization_ratio", {"device": "0"}, 0.5),
    ("of_another_version", {}, 1),
]


def test_what_belongs_to_no_model_is_summed_too(tmp_path):
    alive, dead = WorkerFile(tmp_path), WorkerFile(tmp_path)
    alive.write([], VALUES)
    dead.write([], VALUES)

    def values():
        return {name: value for name, _, value in read_folder(tmp_path).values()}

    both = {
        "monitor_requests_total": 10,
        "monitor_pending": 4,
        "device_allocated_bytes": 200,
        "device_utilization_ratio": 0.5,
    }
    one = {name: value for name, _, value in VALUES[:4]}
    assert values() == both
    dead.leave()
    for _ in range(2):  # its requests stay counted, its memory is free
        assert values() == one | {"monitor_requests_total": 10}
    alive.leave()


def test_what_a_scrape_tells_is_of_all_processes(tmp_path):
    other = WorkerFile(tmp_path)
    other.write([], VALUES)
    listener = Prometheus(port=0, folder=tmp_path)
    with Monitor(listener):
        text = listener.text().decode()
    assert 'monitor_requests_total{outcome="sent"} 5\n' in text
    assert 'device_allocated_bytes{device="0"} 100\n' in text
    other.leave()


def test_threads_that_write_a_workers_file_leave_it_whole(tmp_path):
    worker = WorkerFile(tmp_path)
    values = [("monitor_pending", {}, at) for at in range(3000)]
    broken = []

    def write():
        for _ in range(15):
            try:
                worker.write([], values)
                json.loads(worker.path.read_bytes())
            except (OSError, ValueError) as error:  # noqa: PERF203
                broken.append(error)

    threads = [threading.Thread(target=write) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert broken == []
    worker.leave()


def test_nothing_is_written_once_a_worker_has_left(tmp_path):
    worker = WorkerFile(tmp_path)
    worker.write([], VALUES)
    worker.leave()
    read_folder(tmp_path)
    worker.write([], VALUES)
    worker.leave()
    assert not worker.path.exists()


# A child has a port of its own no more than a grandchild has; both count from zero.
GENERATIONS = """
import os, sys
from torchtriage.operate.monitor import Monitor, Prometheus
monitor = Monitor(Prometheus(port=0), max_models=1)
monitor.observe("a")
monitor.observe("b")
assert monitor.n_refused == 1
for _ in range(2):
    pid = os.fork()
    if pid:
        sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    assert (monitor.n_refused, monitor.n_sink_failures) == (0, 0), vars(monitor)
    assert monitor._thread is not None
print("grandchild")
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_children_of_children_go_on():
    command = [sys.executable, "-W", "ignore", "-c", GENERATIONS]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "grandchild\n", "")


def test_a_port_that_nobody_may_take_is_told_with_a_folder_too(tmp_path):
    from torchtriage.core.errors import UsageError

    with pytest.raises(UsageError, match="cannot listen at"):
        Prometheus(port=9, host="127.0.0.1.nowhere.invalid", token="x", folder=tmp_path).start(Monitor())


def test_every_metric_says_what_it_is():
    for name, metric in METRICS.items():
        assert metric.name == f"torchtriage_{name}"
        assert metric.help.endswith(".")
        assert (metric.kind == "counter") == metric.name.endswith("_total")
