"""JSON of pytest-benchmark (``--benchmark-json``): one file is one process, so one session."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timezone

from torchtriage.core.samples import Machine, Run, Series, Session
from torchtriage.measure.gate.importers.document import DocumentNode


def read_pytest_benchmark(document: DocumentNode, here: Run) -> Run:
    """Return a run with a metric for each test, its full name; values are seconds.

    Raises SampleError: a field is missing or of another type, or the samples were not saved.
    """
    at_s = _seconds(document.get("datetime")) or here.recorded_at_s
    series = []
    for test in document.get("benchmarks").list():
        stats = test.get("stats")
        if not stats.has("data"):
            raise stats.get("data").fail(
                "the samples of each test",
                "only statistics were saved: pytest --benchmark-json=FILE,"
                " or --benchmark-save-data with --benchmark-autosave",
            )
        name = test.get("fullname").text() if test.has("fullname") else test.get("name").text()
        session = Session(stats.get("data").numbers(), None, None, at_s)
        series.append(Series(name, "s", "lower", "latency", (session,)))
    machine = document.get("machine_info")
    cpu = machine.get("cpu") if machine.has("cpu") else DocumentNode({}, machine.where)
    count = cpu.get("count").value
    fields = {
        "architecture": machine.get("machine").text(""),
        "cores": "" if count is None else str(count),
        "cpu": cpu.get("brand_raw").text("") or machine.get("processor").text(""),
        "host": machine.get("node").text(""),
        "kernel": machine.get("release").text(""),
        "os": machine.get("system").text(""),
    }
    python = " ".join(machine.get(name).text("") for name in ("python_implementation", "python_version"))
    environment = [("python", python.strip()), ("tool", "pytest-benchmark")]
    run = replace(
        here,
        benchmark=here.benchmark or "pytest-benchmark",
        recorded_at_s=at_s,
        machine=Machine(tuple(sorted((name, text) for name, text in fields.items() if text))),
        series=tuple(series),
    )
    if document.has("commit_info") and document.get("commit_info").has("id"):
        info = document.get("commit_info")
        commit = info.get("id").text()
        # a checkout of a tag or in CI has no branch: ours knows where CI names it
        of_here = commit == here.commit
        if info.get("dirty").value is True:
            environment.append(("uncommitted changes", "yes"))
        committed_s = _seconds(info.get("time"))
        if committed_s is not None:
            environment.append(("committed_at_s", f"{committed_s:.0f}"))
        branch = info.get("branch").text("")
        run = replace(
            run, commit=commit, branch="" if branch.startswith("(") else branch, parent=here.parent if of_here else None
        )
        if not run.branch and of_here:
            run = replace(run, branch=here.branch)
        project = info.get("project").text("")
        if not here.benchmark and project:
            run = replace(run, benchmark=project)
    return replace(run, environment=tuple(sorted(environment)))


def _seconds(node: DocumentNode) -> float | None:
    """Return a time in ISO format as seconds since the epoch; without a zone it is UTC."""
    if node.value is None:
        return None
    try:
        # Python 3.10 knows no Z
        at = datetime.fromisoformat(node.text().replace("Z", "+00:00"))
    except ValueError as error:
        raise node.fail("a time such as 2026-01-31T12:00:00+00:00") from error
    return (at if at.tzinfo else at.replace(tzinfo=timezone.utc)).timestamp()
