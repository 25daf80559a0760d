"""``torchtriage slim``, and ``--anonymise`` of the commands that report."""

from __future__ import annotations

import gzip
import json
import stat
from pathlib import Path

import pytest
from builder import TraceBuilder

from torchtriage.core.trace import read_trace
from torchtriage.core.trace.schema import PSEUDONYM


def secret(n: int = 12) -> TraceBuilder:
    """Return steps with readbacks, in functions and under annotations of somebody's own."""
    builder = TraceBuilder(with_stack=1, host_name="node7.acme.com")
    builder.event("/home/alice/acme.py(3): fit", "python_function", 0, n * 1000.0, **{"Python id": 1})
    for index in range(n):
        at = index * 1000.0
        builder.step(index, at, 1000).annotation("acme phase", at + 1, 900)
        for read in range(4):
            begin = at + read * 200.5
            builder.op("aten::item", begin + 100, 80).op("aten::_local_scalar_dense", begin + 101, 78)
            builder.launch(begin + 10, 5, begin + 20, 30, "acme_gemm")
            builder.copy(begin + 102, 70, begin + 160, 2, kind="DtoH (Device -> Pageable)")
    return builder


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "acme_alice.json"
    path.write_text(json.dumps({**secret().meta, "traceEvents": secret().events}))
    return path


def codes(run, path: Path) -> list[str]:
    document = json.loads(run("analyze", path, "--json", "--no-source", "-q").output)
    return [finding["code"] for finding in document["results"][0]["findings"]]


def test_smaller_and_judged_alike(run, trace, tmp_path):
    out = tmp_path / "small.json.gz"
    done = run("slim", trace, "-o", out, code=0)
    assert "times smaller" in done.output
    assert codes(run, out) == codes(run, trace)
    assert "SYN001" in codes(run, trace)


def test_the_name_to_write_is_proposed(run, trace, tmp_path):
    done = run("slim", str(trace), "-o", str(tmp_path / "small.json"))
    assert done.exit_code == 2
    assert f"-o {tmp_path / 'small.json.gz'}" in done.stderr


def test_steps_and_the_one_before(run, trace, tmp_path):
    run("slim", trace, "-o", tmp_path / "s.json.gz", "--steps", "4-6", code=0)
    assert read_trace(tmp_path / "s.json.gz").steps.names == tuple(f"ProfilerStep#{n}" for n in (3, 4, 5, 6))
    run("slim", trace, "-o", tmp_path / "w.json.gz", "--window", "2ms-5.5ms", code=0)
    kept = read_trace(tmp_path / "w.json.gz")
    assert (int(kept.start_ns.min()), int(kept.end_ns.max())) == (2_000_000, 5_500_000)
    assert run("slim", trace, "-o", tmp_path / "w.json.gz", "--steps", "70", code=2).output.count("found steps 0-11")


def test_wanted_size_takes_steps_first_and_says_so(run, trace, tmp_path):
    whole, out = tmp_path / "whole.json.gz", tmp_path / "out.json.gz"
    run("slim", trace, "-o", whole, code=0)
    wanted_mb = whole.stat().st_size * 0.8 / 1e6
    done = run("slim", trace, "-o", out, "--max-mb", str(wanted_mb), code=0)
    assert out.stat().st_size <= wanted_mb * 1e6
    assert "all but steps" in done.output
    assert read_trace(out).has_stacks
    assert codes(run, out) == codes(run, trace)
    done = run("slim", trace, "-o", out, "--max-mb", "0.0001", code=2)
    assert "cannot get as small" in done.output


def test_anonymous_and_back(run, trace, tmp_path):
    out, key, report = tmp_path / "out.json.gz", tmp_path / "key.json", tmp_path / "report.txt"
    run("slim", trace, "-o", out, "--anonymise", "--key", key, code=0)
    text = gzip.decompress(out.read_bytes()).decode()
    assert "acme" not in text
    assert "alice" not in text
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    report.write_text(run("analyze", out, "--no-source", "-q").output)
    assert "acme" not in report.read_text()
    restored = run("slim", "--restore", key, report, code=0).output
    assert "acme.py" in restored
    assert "fit" in restored


def test_key_is_not_taken_by_chance_nor_handed_on(run, trace, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run("slim", trace, "-o", "one.json.gz", "--anonymise", code=0)
    before = Path("torchtriage-key.json").read_bytes()
    assert "expected no key file" in run("slim", trace, "-o", "two.json.gz", "--anonymise", code=2).output
    assert Path("torchtriage-key.json").read_bytes() == before
    run("slim", trace, "-o", "two.json.gz", "--anonymise", "--key", "torchtriage-key.json", code=0)
    assert Path("one.json.gz").read_bytes() == Path("two.json.gz").read_bytes()
    Path("ranks").mkdir()
    (Path("ranks") / "rank0.json").write_bytes(trace.read_bytes())
    refused = run("slim", "ranks", "-o", "job", "--anonymise", "--key", "job/key.json", code=2)
    assert "outside of what is handed on" in refused.output


def test_what_fails_leaves_nothing(run, trace, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ranks = tmp_path / "acme_ranks" / "alice"
    ranks.mkdir(parents=True)
    (ranks / "rank0.json").write_bytes(trace.read_bytes())
    (ranks / "rank1.json").write_text("no trace")
    before = sorted(tmp_path.rglob("*"))
    run("slim", "acme_ranks", "-o", "out/job", "--anonymise", code=2)
    run("slim", ranks / "rank1.json", "-o", "one.json.gz", "--anonymise", code=2)
    run("slim", "nowhere.json", "-o", "one.json.gz", "--anonymise", code=2)
    assert sorted(tmp_path.rglob("*")) == before
    (ranks / "rank1.json").write_bytes(trace.read_bytes())
    run("slim", "acme_ranks", "-o", "out/job", "--anonymise", code=0)


def test_what_fails_takes_no_key_that_was_there(run, trace, tmp_path):
    key = tmp_path / "key.json"
    run("slim", trace, "-o", tmp_path / "one.json.gz", "--anonymise", "--key", key, code=0)
    before = key.read_bytes()
    trace.write_text("no trace")
    run("slim", trace, "-o", tmp_path / "two.json.gz", "--anonymise", "--key", key, code=2)
    assert key.read_bytes() == before


def test_ranks_of_a_folder_keep_their_numbers(run, trace, tmp_path):
    folder = tmp_path / "acme_job"
    folder.mkdir()
    for rank in (0, 3):
        (folder / f"alice-rank{rank}.json").write_bytes(trace.read_bytes())
    run("slim", folder, "-o", tmp_path / "plain", code=0)
    assert sorted(file.name for file in (tmp_path / "plain").iterdir()) == [
        "alice-rank0.json.gz",
        "alice-rank3.json.gz",
    ]
    run("slim", folder, "-o", tmp_path / "out", "--anonymise", "--key", tmp_path / "key", code=0)
    assert sorted(file.name for file in (tmp_path / "out").iterdir()) == [
        "trace000_rank0.json.gz",
        "trace001_rank3.json.gz",
    ]


@pytest.mark.parametrize("form", [[], ["--json"], ["--markdown"], ["--sarif"]])
def test_no_report_names_anybody(run, trace, tmp_path, form):
    page = tmp_path / "page.html"
    plain = run("analyze", trace, "-q", *form).output
    key = tmp_path / "key"
    shown = run("analyze", trace, "-q", "--anonymise", "--key", key, "--html", page, *form).output
    assert "acme" in plain
    assert not [text for text in (shown, page.read_text()) if "acme" in text or "alice" in text]
    (tmp_path / "report").write_text(shown)
    assert "acme" in run("slim", "--restore", key, tmp_path / "report", code=0).output


def test_other_commands_name_nobody_either(run, trace):
    for words in (["compare", trace, trace], ["doctor", trace]):
        assert "acme" in run(*words, "-q", code=0).output
        shown = run(*words, "--anonymise", "-q", code=0).output
        assert "acme" not in shown
        assert "alice" not in shown
        assert PSEUDONYM.search(shown)


def test_what_cannot_be_anonymised_is_refused(run, trace, tmp_path):
    refused = run("analyze", trace, "--anonymise", "--perfetto", tmp_path / "p.json", code=2)
    assert "torchtriage slim" in refused.output
    assert not (tmp_path / "p.json").exists()


@pytest.mark.data
def test_ranks_of_a_job_on_one_clock(run, recordings, tmp_path):
    out = tmp_path / "job.json.gz"
    run("analyze", recordings / "distributed" / "dlrm_v100_8ranks", "--perfetto", out, "-q", code=0)
    events = json.loads(gzip.decompress(out.read_bytes()))["traceEvents"]
    ends: dict[int, list[float]] = {}
    for event in events:
        if event.get("cat") == "kernel" and "AllReduce" in event["name"]:
            ends.setdefault(event["pid"] // 1_000_000, []).append(float(event["ts"]) + float(event["dur"]))
    assert len(ends) == 8
    last = [max(times) for times in ends.values()]
    assert max(last) - min(last) < 300
    assert {event["pid"] // 1_000_000 for event in events if event.get("cat") == "torchtriage"} <= set(range(1, 9))
    arrows = [event for event in events if event.get("cat") == "collective"]
    assert len(arrows) == 8 * len({event["id"] for event in arrows}) > 0
