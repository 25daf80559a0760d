"""The demo: everything it starts answers, faults are seen, and all of it ends with it."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from tests.operate.live.test_page import Listener, get, post

DEMO = Path(__file__).parents[3] / "examples" / "monitor_demo.py"


def port_of(url: str) -> int:
    return int(re.findall(r"127\.0\.0\.1:(\d+)", url)[0])


@pytest.mark.slow
@pytest.mark.redis
@pytest.mark.prometheus
def test_the_demo_runs_and_ends_with_all_it_started() -> None:
    command = [sys.executable, str(DEMO), "--port", "0", "--no-story"]
    environment = os.environ | {"OPENBLAS_NUM_THREADS": "1"}
    demo = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    try:
        assert demo.stdout is not None
        said: dict[str, str] = {}
        for line in demo.stdout:
            name, _, value = line.strip().partition("  ")
            said[name] = value.strip()
            if "Ctrl-C" in line:
                break
        page = port_of(said["live page"])
        listener = Listener(page)
        (model,) = listener.find(lambda data: data["models"])
        assert (model["model"], model["version"]) == ("classifier", "1.0")

        (data,) = re.findall(r'id="data">(.*?)</script>', get(page).read().decode())
        key = {"X-Torchtriage-Key": json.loads(data)["key"]}
        assert post(page, "/press/Errors", **key) == 204
        assert post(page, "/press/New%20version", **key) == 204

        def failed(data: dict[str, Any]) -> bool:
            points = [point for model in data["models"] for point in model["points"]]
            return any("ValueError" in point["errors"] for point in points)

        assert listener.find(failed)
        assert listener.find(lambda data: data["rollouts"])[0]["candidate"] == "1.1"

        api = said["Prometheus"].replace("/alerts", "/api/v1")
        rules = json.loads(urllib.request.urlopen(f"{api}/rules", timeout=60).read())
        assert any(group["rules"] for group in rules["data"]["groups"])
        query = f"{api}/query?query=up"
        end_s, up = time.monotonic() + 60, ""
        while up != "1" and time.monotonic() < end_s:
            found = json.loads(urllib.request.urlopen(query, timeout=60).read())["data"]["result"]
            up = found[0]["value"][1] if found else ""
            time.sleep(0.2)
        assert up == "1"

        import redis

        with redis.Redis.from_url(said["Redis"]) as client:
            while not client.xlen("torchtriage:requests"):
                assert time.monotonic() < end_s
                time.sleep(0.1)
    finally:
        demo.send_signal(signal.SIGINT)
        _, errors = demo.communicate(timeout=60)
    assert (demo.returncode, errors) == (0, "")
    for url in said.values():
        if "127.0.0.1" in url:
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(("127.0.0.1", port_of(url)), 5)
