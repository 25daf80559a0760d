"""Where the shared recordings are, and what to do without them or without torch."""

from __future__ import annotations

import gc
import inspect
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import hypothesis
import pytest

import torchtriage as tt

DATA = Path(os.environ.get("TORCHTRIAGE_DATA", Path(__file__).parents[2] / "shared" / "data"))

# a shell that runs the tests in the background has them, and all they start, ignore Ctrl-C
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# how long one example takes says more about the machine than about the code
hypothesis.settings.register_profile("torchtriage", deadline=None)
hypothesis.settings.load_profile("torchtriage")


def postgres_programs() -> Path | None:
    """Return the folder of initdb and postgres, which Debian keeps off the path."""
    found = shutil.which("initdb")
    if found:
        return Path(found).resolve().parent
    folders = Path("/usr/lib/postgresql").glob("*/bin")
    return max((one for one in folders if (one / "initdb").exists()), default=None)


@cache
def xla_python() -> str:
    """Return a Python that has torch_xla, empty where there is none."""
    beside = Path(__file__).parents[1] / ".venv-xla" / "bin" / "python"
    if find_spec("torch_xla") is not None:
        return sys.executable
    return str(beside) if list(beside.parents[1].glob("lib/python*/site-packages/torch_xla")) else ""


STARTERS = frozenset(
    {"subprocess", "Popen", "multiprocessing", "webdriver", "fork", "ProcessPoolExecutor", "StdioServerParameters"}
)


def functions_of(item: pytest.Function) -> list[object]:
    """Return a test and the fixtures that it uses."""
    fixtures = item._fixtureinfo.name2fixturedefs.values()
    return [item.function, *(fixture.func for several in fixtures for fixture in several)]


@cache
def starts_processes(function: object) -> bool:
    """Return whether a function starts interpreters, servers or browsers, itself or through its module's helpers."""
    seen, waiting = set(), [function]
    while waiting:
        function = waiting.pop()
        function = inspect.unwrap(function) if callable(function) else function
        if function in seen or not inspect.isfunction(function) or "tests" not in function.__code__.co_filename:
            continue
        seen.add(function)
        names = function.__code__.co_names
        if not STARTERS.isdisjoint(names):
            return True
        waiting += [function.__globals__[name] for name in names if inspect.isfunction(function.__globals__.get(name))]
    return False


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip, visibly, what needs recordings or a library that are not there."""
    missing = {}
    if not (DATA / "traces").is_dir():
        missing["data"] = "the shared recordings are not here; set TORCHTRIAGE_DATA"
    if not xla_python():
        missing["xla"] = "no Python with torch_xla here; make test-xla makes one"
    elif "xla" not in config.option.markexpr:
        missing["xla"] = "takes minutes: make test-xla, or pytest -m xla"
    if find_spec("torch") is None:
        missing["torch"] = "torch is not installed here; make test-torch runs it"
    if not postgres_programs():
        missing["postgres"] = "no PostgreSQL server here: apt-get install postgresql"
    elif find_spec("psycopg") is None:
        missing["postgres"] = "psycopg is not installed here: pip install 'torchtriage[postgres]'"
    if not shutil.which("redis-server"):
        missing["redis"] = "no Redis server here: apt-get install redis-server"
    if not shutil.which("promtool"):
        missing["prometheus"] = "no Prometheus here: apt-get install prometheus"
    for item in items:
        if isinstance(item, pytest.Function) and any(map(starts_processes, functions_of(item))):
            item.add_marker("process")
        for marker, reason in missing.items():
            # a marker, not a keyword: folders named data are keywords too
            if item.get_closest_marker(marker):
                item.add_marker(pytest.mark.skip(reason=reason))


def pytest_collection_finish() -> None:
    """Thousands of tests live to the end: no collection of garbage goes through them again."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def recordings() -> Path:
    """Return the folder of the shared profiler traces."""
    return DATA / "traces"


@pytest.fixture(scope="session")
def judge() -> Callable[[Path], tt.Report]:
    """Return a function that judges each recording once; results are small, traces are not."""
    return cache(tt.analyze)


@pytest.fixture(scope="module")
def chrome() -> Iterator[Any]:
    """Return a browser that no test of another module has used."""
    selenium = pytest.importorskip("selenium.webdriver")
    from selenium.webdriver.chrome.service import Service

    browser, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if not browser or not driver:
        missing = "chromium is missing: apt-get install chromium chromium-driver"
        if os.environ.get("CI"):
            pytest.fail(missing)
        pytest.skip(missing)
    options = selenium.ChromeOptions()
    options.binary_location = browser
    for argument in (
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--window-size=1200,900",
    ):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    chrome = selenium.Chrome(options=options, service=Service(driver))
    yield chrome
    chrome.quit()
