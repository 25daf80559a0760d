"""Every panel and recorded series shows something, by a real Prometheus and a real service."""

import contextlib
import json
import math
import re
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request

import pytest
from click.testing import CliRunner
from tests.ports import free_port

from torchtriage.cli.main import cli
from torchtriage.operate.monitor.dashboard import DASHBOARD, dashboard
from torchtriage.operate.monitor.metrics import METRICS, metrics_of
from torchtriage.operate.monitor.rules import ALERTS, RECORDED, rules

# A monitored service with all that can be told. Where torch is not, what stands for it is put where
# the collector looks; the numbers of a GPU need one.
SERVICE = """
import sys, time
from collections import Counter
from types import SimpleNamespace

from torchtriage import monitor
from torchtriage.operate.monitor import process_metrics
from torchtriage.operate.ladder import Ladder, Mode
from torchtriage.operate.rollout import Rollout, RolloutPlan, open_rollouts

sys.modules["torch"] = SimpleNamespace(cuda=SimpleNamespace(
    is_initialized=lambda: True, device_count=lambda: 1,
    memory_allocated=lambda at: 7 << 30, memory_reserved=lambda at: 9 << 30,
    get_device_properties=lambda at: SimpleNamespace(total_memory=80 << 30, uuid="5"),
    utilization=lambda at: 70, power_draw=lambda at: 310_000, temperature=lambda at: 61,
))
sys.modules["pynvml"] = SimpleNamespace(
    nvmlInit=lambda: None, nvmlDeviceGetHandleByUUID={"GPU-5": 1}.__getitem__,
    nvmlDeviceGetTotalEccErrors=lambda handle, kind, counter: 3,
    NVML_MEMORY_ERROR_TYPE_UNCORRECTED=1, NVML_VOLATILE_ECC=0,
)
sys.modules["torch._dynamo.convert_frame"] = SimpleNamespace(FRAME_COMPILE_COUNTER={0: 3})
sys.modules["torch._dynamo.utils"] = SimpleNamespace(counters={
    "graph_break": Counter(call=2),
    "inductor": Counter(fxgraph_cache_hit=1), "aot_autograd": Counter(autograd_cache_miss=1),
})
class Consumer:  # what a fleet's consumer tells
    def metrics(self):
        of = {"device": "cam-7", "model": "detector", "version": "2.1"}
        for name in ("requests_total", "failed_total", "seconds_total", "slowness_ratio"):
            yield f"fleet_{name}", of, time.time() * (3 if name == "requests_total" else 1.5)
        yield "fleet_alarms_total", {"kind": "slow-device"}, 1
        yield "fleet_records_total", {"outcome": "taken"}, 9
        for name in ("lag_entries", "lag_seconds", "pending_entries"):
            yield f"fleet_{name}", {}, 1
        late = {"rank": "5", "phase": "loader"}  # and a straggler watch
        yield "straggler_late_ratio", late, 0.1
        yield "straggler_late_total", late, 1
        yield "straggler_windows_total", {}, time.time()

consumer = Consumer()
process_metrics.register(consumer)
listener = monitor.Prometheus(port=0)
monitor.start(listener, monitor.JsonLog(sys.argv[1] + "/log"), monitor.Detection())
ladder = Ladder("boxes", [Mode("full", abs), Mode("lite", abs)])
rollout = Rollout(RolloutPlan("int8"), store=open_rollouts(sys.argv[1] + "/rollouts.db"))
model = monitor.observe("detector", version="2.1")
print(listener.port, flush=True)
for n in range(10_000):
    try:
        with model.request(size=n % 7, queued_ns=100_000) as request:
            request.nan = n % 5 == 0
            time.sleep(0.01)
            if n % 10 == 0:
                raise ValueError
    except ValueError:
        pass
"""


@pytest.fixture
def service(tmp_path):
    command = [sys.executable, "-c", SERVICE, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        yield int(process.stdout.readline())
        process.kill()


@pytest.fixture
def ask(service, tmp_path):
    """Return a function that asks a Prometheus that scrapes the service each second."""
    config = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": ["rules.yml"],
        "scrape_configs": [{"job_name": "service", "static_configs": [{"targets": [f"127.0.0.1:{service}"]}]}],
    }
    (tmp_path / "rules.yml").write_text(rules(latency={"": 0.2}))
    (tmp_path / "prometheus.yml").write_text(json.dumps(config))
    port = free_port()
    command = [
        "prometheus",
        "--config.file=prometheus.yml",
        "--storage.tsdb.path=data",
        f"--web.listen-address=127.0.0.1:{port}",
        "--log.level=error",
    ]

    def answer(what, **query):
        url = f"http://127.0.0.1:{port}/api/v1/{what}?{urllib.parse.urlencode(query)}"
        with urllib.request.urlopen(url, timeout=10) as reply:
            return json.loads(reply.read())["data"]

    with subprocess.Popen(command, cwd=tmp_path) as process:
        yield answer
        process.kill()


def shown():
    """Return each query as Grafana sends it, with its title and legend."""
    for panel in json.loads(dashboard())["panels"]:
        for target in panel.get("targets", ()):
            query = target["expr"].replace("$__rate_interval", "15s")
            query = re.sub(r"\$(instance|model|version)\b", ".*", query)
            yield panel["title"], query, target["legendFormat"]


def has_data(result, legend):
    """Return whether there is a number, under a legend that is filled in."""
    labels = re.findall(r"{{(\w+)}}", legend)
    return any(not math.isnan(float(one["value"][1])) and all(one["metric"].get(x) for x in labels) for one in result)


@pytest.mark.prometheus
def test_every_panel_and_recorded_series_shows_something(ask):
    wanted = {(title, query): legend for title, query, legend in shown()}
    wanted |= {("recorded", name): "{{model}}" for name in RECORDED}
    end_s = time.monotonic() + 60
    while wanted:
        assert time.monotonic() < end_s, f"without data: {sorted(wanted)}"
        with contextlib.suppress(urllib.error.URLError, ConnectionError):
            for key, legend in list(wanted.items()):
                if has_data(ask("query", query=key[1])["result"], legend):
                    del wanted[key]
        time.sleep(0.2)
    (target,) = ask("targets")["activeTargets"]
    assert (target["health"], target["lastError"]) == ("up", "")
    (group,) = ask("rules")["groups"]
    told = {one["name"]: (one["health"], one.get("lastError", "")) for one in group["rules"]}
    assert set(told.values()) == {("ok", "")}
    assert {alert.name for alert in ALERTS} < set(told)
    for variable in json.loads(dashboard())["templating"]["list"][1:]:
        series, label = re.fullmatch(r"label_values\((.*), (\w+)\)", variable["definition"]).groups()
        series = re.sub(r"\$\w+", ".*", series)
        assert all(one["metric"][label] for one in ask("query", query=series)["result"]), label


def test_every_metric_has_a_panel():
    panels = [panel for row in DASHBOARD.values() for panel in row]
    shown = {metric for panel in panels for query in panel.queries.values() for metric in metrics_of(query)}
    assert set(METRICS.values()) - shown == set()


def test_a_panel_says_what_its_metrics_are():
    for panel in json.loads(dashboard())["panels"]:
        if panel["type"] != "row":
            assert any(metric.help in panel["description"] for metric in METRICS.values())


def test_panels_lie_beside_each_other_and_have_numbers_of_their_own():
    panels = json.loads(dashboard())["panels"]
    taken = set()
    for panel in panels:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert max(x for x, _ in cells) < 24
        assert not cells & taken
        taken |= cells
    ids = [panel["id"] for panel in panels]
    assert len(set(ids)) == len(ids)


def test_what_is_chosen_on_the_page_holds_for_every_query():
    document = json.loads(dashboard())
    names = [one["name"] for one in document["templating"]["list"]]
    assert names == ["datasource", "instance", "model", "version"]
    for panel in document["panels"]:
        for target in panel.get("targets", ()):
            assert target["datasource"]["uid"] == "${datasource}"
            for series in re.findall(r"torchtriage_\w+({[^}]*})?", target["expr"]):
                assert 'instance=~"$instance"' in series
            for series in re.findall(r"torchtriage_inference_\w+({[^}]*})", target["expr"]):
                assert 'model=~"$model",version=~"$version"' in series


def test_the_command_writes_the_same_document(tmp_path):
    path = tmp_path / "grafana.json"
    printed = CliRunner().invoke(cli, ["monitor", "dashboard"])
    assert (printed.exit_code, printed.stdout) == (0, dashboard())
    assert CliRunner().invoke(cli, ["monitor", "dashboard", "-o", str(path)]).exit_code == 0
    assert path.read_text() == dashboard()
    lost = CliRunner().invoke(cli, ["monitor", "dashboard", "-o", str(tmp_path / "no" / "file")])
    assert lost.exit_code == 2
