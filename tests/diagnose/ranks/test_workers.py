from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any

import pytest
from builder import TraceBuilder
from diagnose.ranks.jobs import job, merged, write

import torchtriage as tt
from torchtriage.core.errors import MissingExtraError, TraceFormatError, UsageError
from torchtriage.core.workers import Workers, WorkerStartError
from torchtriage.diagnose.ranks import workers
from torchtriage.diagnose.ranks.object_store import find_urls, is_url
from torchtriage.diagnose.ranks.workers import examine_all
from torchtriage.diagnose.verdict.options import Options


def test_processes_give_the_same_bytes(tmp_path: Path) -> None:
    files = write(job(3, late={1: 4000}), tmp_path)
    alone = tt.analyze_ranks(files, processes=1).to_json()
    assert tt.analyze_ranks(files, processes=2).to_json() == alone
    assert b"COM036" in alone


def test_a_job_is_scaled_to_the_step_that_its_ranks_reach(tmp_path: Path) -> None:
    files = write(job(2, late={1: 4000}), tmp_path)
    (judged,) = tt.analyze_ranks(files, processes=1, step_ms=0.001).jobs
    assert judged.step_ms == pytest.approx(9.84, abs=0.01)  # of 10.87 recorded
    assert judged.findings[0].cost.of_ms == judged.step_ms


def test_a_file_that_cannot_be_read_is_left_out_in_processes_too(tmp_path: Path) -> None:
    files = write(job(2), tmp_path)
    (tmp_path / "rank1.json").write_text("[]")
    for processes in (1, 2):
        report = tt.analyze_ranks(files, processes=processes)
        assert [result.trace.rank for result in report.results] == [0]
        (error,) = report.unreadable
        assert str(tmp_path / "rank1.json") in str(error)
        assert report.jobs == ()


def test_a_worker_that_dies_costs_its_file_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = [str(one) for one in write(job(2), tmp_path)]
    start = Workers._start

    def broken(self: Any) -> Any:
        process = start(self)
        if len(self._processes) == 1:
            process.kill()
            process.wait()
        return process

    monkeypatch.setattr(Workers, "_start", broken)
    found = list(examine_all(files, Options(sources=None), processes=1 + 1))
    failed = [one for one in found if isinstance(one, TraceFormatError)]
    assert len(failed) <= 1
    assert len(found) == 2
    monkeypatch.setattr(Workers, "_start", start)
    assert not [
        one for one in examine_all(files, Options(sources=None), processes=2) if isinstance(one, TraceFormatError)
    ]


@pytest.mark.parametrize("what", ["subprocess.Popen", "threading.Thread.start", "threading.Timer.start"])
def test_files_are_read_here_where_no_process_can_be_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise RuntimeError("can't start new thread") if "thread" in what else BlockingIOError("no more processes")

    files = [str(path) for path in write(job(2), tmp_path)]
    monkeypatch.setattr(what, refuse)
    found = list(examine_all(files, Options(sources=None), processes=2, max_seconds=60))
    assert [outcome.result.trace.rank for outcome in found] == [0, 1]


def test_a_task_that_was_refused_for_want_of_threads_is_done_by_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, left = Thread.start, [True]

    def start_one(thread: Thread) -> None:
        if not left:
            raise RuntimeError("can't start new thread")
        left.pop()
        start(thread)

    monkeypatch.setattr(Thread, "start", start_one)
    with Workers(2, os.mkdir) as pool:
        held = [pool._idle.get() for _ in range(2)]
        pool.submit(str(tmp_path / "first"))
        assert isinstance(pool.submit(str(tmp_path / "second")).exception(), WorkerStartError)
        for process in held:
            pool._idle.put(process)
        pool._threads.shutdown()
    assert [path.name for path in tmp_path.iterdir()] == ["first"]


class FakeRay:
    """A cluster of one node, on which tasks for some files fail, once for each error."""

    class exceptions:  # noqa: N801 - a module
        class RayError(Exception):
            pass

        class OutOfMemoryError(RayError):
            pass

        class WorkerCrashedError(RayError):
            pass

        class NodeDiedError(RayError):
            pass

        class RayTaskError(RayError):
            pass

    def __init__(self, fails: dict[str, list[type[Exception]]]) -> None:
        self.fails = fails

    def is_initialized(self) -> bool:
        return True

    def remote(self, **options: object) -> Any:
        assert options["max_retries"] == 0
        return lambda answer: SimpleNamespace(remote=lambda *task: (answer, task))

    def get(self, task: Any) -> Any:
        answer, asked = task
        if fails := self.fails.get(asked[0]):
            raise fails.pop()(f"{asked[0]} failed")
        return answer(*asked)


@pytest.fixture(autouse=True)
def own_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take back what a task sets in its process, which is this one here."""
    monkeypatch.setenv(workers.PROCESSES_VARIABLE, "1")
    monkeypatch.delenv(workers.PROCESSES_VARIABLE)


def test_a_task_of_a_cluster_takes_one_processor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = [str(path) for path in write(job(2), tmp_path)]
    monkeypatch.setitem(sys.modules, "ray", FakeRay({}))
    list(examine_all(files, Options(sources=None), engine="ray"))
    assert os.environ[workers.PROCESSES_VARIABLE] == "1"


@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize("engine", ["local", "ray"])
def test_a_rank_that_runs_out_of_memory_costs_its_file_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: str, wrapped: bool
) -> None:
    files = [str(path) for path in write(job(4), tmp_path)]
    read = workers.read_trace

    def limited(path: str, **options: Any) -> Any:
        if path == files[1]:
            # as memory_limit.within reports it
            if wrapped:
                raise UsageError("expected room for columns") from MemoryError()
            raise MemoryError
        return read(path, **options)

    monkeypatch.setattr(workers, "read_trace", limited)
    monkeypatch.setitem(sys.modules, "ray", FakeRay({files[2]: [FakeRay.exceptions.OutOfMemoryError] * 3}))
    outcomes = list(examine_all(files, Options(sources=None), engine=engine, processes=1))
    failed = [outcome for outcome in outcomes if isinstance(outcome, TraceFormatError)]
    assert [(error.where, "out of memory" in error.message) for error in failed] == [
        (path, True) for path in files[1 : 3 if engine == "ray" else 2]
    ]
    assert len(outcomes) == len(files)


@pytest.mark.parametrize("processes", [1, 2])
def test_ranks_merged_into_one_file_are_the_job_that_they_were(tmp_path: Path, processes: int) -> None:
    ranks = job(3, late={1: 4000})
    apart = tt.analyze_ranks(write(ranks, tmp_path / "apart"))
    file = tmp_path / "merged.json"
    file.write_bytes(merged(ranks).json())
    # beside another file, so that processes have something to share
    together = tt.analyze_ranks(
        [file, *write([TraceBuilder().step(3, 0, 1000).op("aten::mm", 10, 900)], tmp_path / "other")],
        processes=processes,
    )
    (expected,), (found,) = apart.jobs, together.jobs
    assert found.verdict == expected.verdict
    assert [finding.code for finding in found.findings] == [finding.code for finding in expected.findings]
    assert [rank.path for rank in found.ranks] == [f"{file} (rank {number})" for number in range(3)]
    assert [result.trace.rank for result in together.results] == [0, 1, 2, None]


@pytest.mark.parametrize("engine", ["local", "ray"])
def test_one_bad_rank_never_ends_the_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: str) -> None:
    files = [str(path) for path in write(job(6), tmp_path)]
    Path(files[1]).write_text("[]")
    read = workers.read_trace

    def defect(path: str, **options: Any) -> Any:
        if path == files[2]:
            raise KeyError("no such thing")
        return read(path, **options)

    monkeypatch.setattr(workers, "read_trace", defect)
    fake = FakeRay.exceptions
    lost = {files[3]: [fake.NodeDiedError] * 3, files[4]: [fake.RayTaskError], files[5]: [fake.NodeDiedError] * 2}
    monkeypatch.setitem(sys.modules, "ray", FakeRay(lost))
    report = tt.analyze_ranks(files, engine=engine, processes=1)
    texts = {str(error.where): str(error) for error in report.unreadable}
    assert "a bug in torchtriage, KeyError" in texts.pop(files[2])
    assert "trace" in texts.pop(files[1])
    if engine == "ray":
        assert "node" in texts[files[3]]
        assert "3 times" in texts.pop(files[3])
        assert "every node needs the same torchtriage" in texts.pop(files[4])
    assert not texts
    ranks = [result.trace.rank for result in report.results]
    assert ranks == ([0, 5] if engine == "ray" else [0, 3, 4, 5])


@pytest.mark.slow
def test_a_file_that_never_ends_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = [str(path) for path in write(job(3), tmp_path)]
    # in the worker's process: a store that does not answer
    (tmp_path / "stuck_store.py").write_text(
        "import time\n"
        "from torchtriage.diagnose.ranks import workers\n"
        "from torchtriage.diagnose.ranks.workers import _answer\n"
        "read = workers.read_trace\n"
        "def stuck(path, **options):\n"
        "    if path.endswith('rank1.json'):\n"
        "        time.sleep(600)\n"
        "    return read(path, **options)\n"
        "workers.read_trace = stuck\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    start = Workers._start

    def elsewhere(self: Any) -> Any:
        self._function = SimpleNamespace(__module__="stuck_store", __name__="_answer")
        return start(self)

    monkeypatch.setattr(Workers, "_start", elsewhere)
    report = tt.analyze_ranks(files, processes=1, max_seconds=15)
    (error,) = report.unreadable
    assert error.where == files[1]
    assert "within 15 s" in str(error)
    assert [result.trace.rank for result in report.results] == [0, 2]


def test_a_defect_in_every_file_is_said_to_be_one(tmp_path: Path) -> None:
    files = [str(one) for one in write(job(2), tmp_path)]
    broken: Any = Options(max_bytes=None)  # type: ignore[arg-type]
    for processes in (1, 2):
        with pytest.raises(RuntimeError, match="TypeError"):
            workers.analyze_files(files, broken, processes=processes)


def test_many_unreadable_files_are_not_all_named(tmp_path: Path) -> None:
    files = [tmp_path / f"rank{rank}.json" for rank in range(40)]
    for file in files:
        file.write_text("[]")
    with pytest.raises(TraceFormatError, match="and 30 more"):
        tt.analyze_ranks(files)


def test_options_reach_the_workers(tmp_path: Path) -> None:
    files = write(job(2), tmp_path)
    report = tt.analyze_ranks(files, processes=2, only=["SYN001"])
    assert {result.checked for result in report.results} == {("SYN001",)}
    with pytest.raises(UsageError):
        tt.analyze_ranks(files, only=["XXX999"])


def test_many_files_come_without_their_timelines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = write(job(2), tmp_path)
    assert all(result.summary.timeline for result in tt.analyze_ranks(files).results if result.summary)
    monkeypatch.setattr(workers, "KEEP_TIMELINES", 1)
    assert not any(result.summary.timeline for result in tt.analyze_ranks(files).results if result.summary)


def test_of_many_files_each_result_is_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    builders = job(2)
    for builder in builders:
        for at in range(40):
            builder.op(f"aten::odd_{at}", 1100 + at * 20, 10)
            builder.launch(1101 + at * 20, 3, 1105 + at * 20, 10, f"kernel_{at}")
    files = write(builders, tmp_path)

    def longest() -> int:
        results = tt.analyze_ranks(files).results
        return max(
            len(some)
            for result in results
            if result.summary
            for some in (result.summary.top_kernels, result.summary.top_ops)
        )

    assert longest() > 20
    monkeypatch.setattr(workers, "KEEP_TIMELINES", 1)
    assert longest() == workers.KEEP_ROWS


def test_an_engine_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="local, ray"):
        tt.analyze_ranks(write(job(2), tmp_path), engine="spark")


def test_without_ray_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtraError, match=r"torchtriage\[cluster\]"):
        tt.analyze_ranks(write(job(2), tmp_path), engine="ray")


# -- object stores -------------------------------------------------------------------------------


def test_a_url_names_its_store() -> None:
    assert is_url("s3://bucket/run/rank0.json.gz")
    assert is_url("memory://run")
    assert not is_url("run/rank0.json")
    assert not is_url(r"C:\run\rank0.json")
    assert not is_url(Path("s3://bucket"))


def test_without_fsspec_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(MissingExtraError, match=r"torchtriage\[cluster\]"):
        tt.analyze_ranks("memory://run")


def test_a_store_without_its_package_is_named() -> None:
    with pytest.raises((MissingExtraError, TraceFormatError)):
        find_urls("nonsense-store://run")


def test_traces_in_a_store_give_what_files_give(tmp_path: Path) -> None:
    import fsspec

    files = write(job(2, late={1: 4000}), tmp_path)
    store = fsspec.filesystem("memory")
    for file in files:
        store.pipe(f"/run/{file.name}", file.read_bytes())
    store.pipe("/run/notes.txt", b"no trace")
    here = tt.analyze_ranks(files)
    there = tt.analyze_ranks("memory://run")
    assert [result.trace.path for result in there.results] == ["memory:///run/rank0.json", "memory:///run/rank1.json"]
    assert [one.findings for one in there.jobs] == [one.findings for one in here.jobs]
    some = tt.analyze_ranks("memory://run/rank*.json")
    assert some.to_json() == there.to_json()
    by_file = tt.analyze_ranks(tmp_path.as_uri())
    assert [one.findings for one in by_file.jobs] == [one.findings for one in here.jobs]


def test_a_store_gives_one_file_of_a_recording() -> None:
    import fsspec

    store = fsspec.filesystem("memory")
    for name in ("host.trace.json.gz", "host.xplane.pb", "perfetto_trace.json.gz", "1_results.db"):
        store.pipe(f"/jax/{name}", b"")
    assert find_urls("memory://jax") == ["memory:///jax/1_results.db", "memory:///jax/host.xplane.pb"]


def test_nothing_in_a_store_is_said() -> None:
    with pytest.raises(TraceFormatError, match="memory://no/such"):
        tt.analyze_ranks("memory://no/such/*.json")
    with pytest.raises(TraceFormatError, match=r"memory:///no/such\.json"):
        tt.analyze_ranks("memory://no/such.json")


# -- memory --------------------------------------------------------------------------------------


@pytest.mark.slow
def test_memory_grows_with_records_not_with_traces(tmp_path: Path) -> None:
    """Eight ranks need little more than two: no trace stays."""
    (big,) = write([_large()], tmp_path)
    text = big.read_bytes()
    files = []
    for rank in range(8):
        path = tmp_path / f"job{rank}.json"
        path.write_bytes(text.replace(b'"rank": 0', b'"rank": %d' % rank))
        files.append(str(path))
    peaks = [_peak_bytes(files[:n]) for n in (2, 8)]
    assert peaks[1] - peaks[0] < 6 * 0.25 * len(text)


def _large() -> Any:
    builder = job(16, n_steps=4)[0]
    for at in range(30_000):
        builder.op("aten::add", 40_000 + at, 0.5)
    return builder


def _peak_bytes(files: list[str]) -> int:
    code = (
        "import resource, sys, torchtriage as tt\n"
        "tt.analyze_ranks(sys.argv[1:], processes=1)\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)"
    )
    run = subprocess.run([sys.executable, "-c", code, *files], capture_output=True, text=True, check=True)
    return int(run.stdout)
