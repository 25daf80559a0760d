"""What collected records say: groups in exact numbers, what is named, and what is not."""

import gzip
import json
import random

import pytest
from click.testing import CliRunner

from torchtriage.cli.main import cli
from torchtriage.core.errors import SampleError
from torchtriage.operate.collected.analyze import _longer, report
from torchtriage.operate.monitor import JsonLog, Monitor
from torchtriage.report.formats import decode

HOUR_S = 3600.0


def line(at_s, ms=10.0, **more):
    return {"model": "detector", "version": "1", "at_s": at_s, "duration_ns": int(ms * 1e6), "event": "request"} | more


def write(path, lines):
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def fleet(slow=1.0, version_slow=1.0, n=200, devices=8):
    """Lines of some devices; cam-7 may be slow, and version 2, on half of them, too."""
    draw = random.Random(4)
    for device in range(devices):
        for at in range(n):
            version = "2" if device % 2 else "1"
            size = draw.choice((1, 8))
            ms = size * 5 * (slow if device == 7 else 1) * (version_slow if version == "2" else 1)
            ms *= draw.lognormvariate(0, 0.1)
            yield line(at * 60.0, ms, device=f"cam-{device}", version=version, size=size)


def test_groups_are_in_exact_numbers(tmp_path):
    lines = [line(at, ms=at + 1.0, size=2) for at in range(100)]
    lines += [line(HOUR_S + at, ms=500.0, error="ValueError") for at in range(3)] + [line(HOUR_S + 4, nan=True)]
    result = report([write(tmp_path / "log", lines)])
    (model,) = result.models
    assert (model.whole.requests, model.whole.failed) == (104, 4)
    assert (model.whole.p50_ms, model.whole.p90_ms) == (50.5, 90.1)
    assert [(g.name, g.requests, g.failed) for g in model.hours] == [
        ("1970-01-01 00:00", 100, 0),
        ("1970-01-01 01:00", 4, 4),
    ]
    assert model.hours[1].p50_ms is None
    assert [(g.name, g.requests) for g in model.sizes] == [("(none)", 4), ("2", 100)]
    assert model.slowest[0].took_ms == 100.0
    assert "3.8 % failed" in result.verdict[0]


def test_a_slow_device_is_named_and_sizes_alone_make_none_slow(tmp_path):
    result = report([write(tmp_path / "log", fleet(slow=1.5))])
    (group,) = (g for g in result.models[0].devices if g.name == "cam-7")
    assert group.beside == pytest.approx(1.5, rel=0.03)
    assert any("cam-7 (1.5" in text for text in result.verdict)
    both = report([write(tmp_path / "log", fleet(slow=1.5, version_slow=1.2, devices=24))])
    assert any("cam-7 (1.5" in text for text in both.verdict)
    assert any("version 2 takes 2" in text for text in both.verdict)
    quiet = report([write(tmp_path / "log", fleet())])
    assert len(quiet.verdict) == 1
    large = [line(at, 40.0, device="cam-9", size=8) for at in range(300)]
    assert len(report([write(tmp_path / "log", [*fleet(), *large])]).verdict) == 1


def test_a_slow_version_is_named(tmp_path):
    result = report([write(tmp_path / "log", fleet(version_slow=1.2))])
    assert any("version 2 takes 20% longer" in text for text in result.verdict)


def test_a_version_is_not_called_slower_by_chance(tmp_path):
    named = 0
    for seed in range(20):
        draw = random.Random(seed)
        lines = [line(float(at), 10 * draw.lognormvariate(0, 0.5), version=str(at % 2)) for at in range(300)]
        result = report([write(tmp_path / "log", lines)])
        named += any("longer than" in text for text in result.verdict)
        low, high = sorted(group.beside for group in result.models[0].versions)
        assert low < 1 < high
    assert named <= 1


def versions_on(devices, slower=1.0, seed=0):
    """Lines of devices that differ by 10 %; ``devices`` : of each version."""
    draw = random.Random(seed)
    own = {device: draw.lognormvariate(0, 0.1) for device in sorted({*devices[0], *devices[1]})}
    for version, on in enumerate(devices):
        for device in on:
            for at in range(120):
                ms = 10 * own[device] * (slower if version else 1) * draw.lognormvariate(0, 0.1)
                yield line(float(at), ms, version=str(version), device=device)


def named(path, lines):
    result = report([write(path, lines)])
    told = any("longer than the others" in text for text in result.verdict)
    return told, any(note.code == "versions" for note in result.notes)


def test_quiet_on_equal_versions_of_which_only_the_devices_differ(tmp_path):
    found = [named(tmp_path / "log", versions_on(("abcd", "efgh"), seed=seed)) for seed in range(20)]
    assert sum(told for told, _ in found) <= 1
    assert not any(noted for _, noted in found)


def test_quiet_on_equal_versions_on_devices_of_two_kinds():
    draw = random.Random(2)

    def levels(begin):
        return {begin + at: (draw.choice((0.0, 0.3)) + draw.gauss(0, 0.02), 1e-4) for at in range(6)}

    told = [_longer(levels(0), levels(6))[1] > 0 for _ in range(500)]
    assert sum(told) <= 5


def test_a_slower_version_is_named_by_devices_that_ran_both(tmp_path):
    assert named(tmp_path / "log", versions_on(("abcdef", "abcdef"), slower=1.15)) == (True, False)


def test_too_few_devices_name_no_version_and_the_report_says_so(tmp_path):
    for devices in (("a", "b"), ("a", "a"), ("ab", "cd")):
        assert named(tmp_path / "log", versions_on(devices, slower=1.5)) == (False, True)


def test_many_sizes_become_powers_of_two(tmp_path):
    lines = [line(at, size=at % 100 + 1) for at in range(1000)]
    (model,) = report([write(tmp_path / "log", lines)]).models
    assert [g.name for g in model.sizes] == [
        "1", "2 to 3", "4 to 7", "8 to 15", "16 to 31", "32 to 63", "64 to 127",
    ]  # fmt: skip
    assert sum(g.requests for g in model.sizes) == 1000


def test_drift_of_sizes_and_of_outputs_is_named_and_steadiness_is_not(tmp_path):
    draw = random.Random(1)

    def lines(shift):
        for at in range(3000):
            late = at / 3000 * shift
            score = draw.gauss(0.7 - 0.3 * late, 0.1)
            yield line(
                float(at), size=round(draw.lognormvariate(4 + late, 0.3)), fields={"score": score, "id": str(at)}
            )

    drifted = report([write(tmp_path / "log", lines(1.0))])
    assert {drift.what for drift in drifted.models[0].drifts} == {"size", "score"}
    assert any("score drifted" in text for text in drifted.verdict)
    assert report([write(tmp_path / "log", lines(0.0))]).models[0].drifts == ()


def test_outputs_of_a_version_that_differ_are_told(tmp_path):
    draw = random.Random(1)
    lines = [
        line(float(at), version=str(1 + at % 2), fields={"boxes": draw.randint(0, 5) * (1 + at % 2)})
        for at in range(2000)
    ]
    (drift,) = report([write(tmp_path / "log", lines)]).models[0].drifts
    assert (drift.what, drift.between) == ("boxes", ("1", "2"))


def test_a_drift_of_what_is_true_or_false_is_told_as_a_share(tmp_path):
    lines = [
        line(float(at), error="E" if at % (100 if at < 3000 else 2) == 0 else "", fields={"empty": at % 4 < at // 3000})
        for at in range(6000)
    ]
    result = report([write(tmp_path / "log", lines)])
    assert [text.strip().partition(" (")[0] for text in result.verdict[1:]] == [
        "failed drifted from first third to last third: 1.0 % → 50 %",
        "empty drifted from first third to last third: 0 % → 25 %",
    ]


def test_failures_drift_in_a_log_of_a_share_of_the_requests_as_in_one_of_all(tmp_path):
    def drifts(last, samples):
        draw = random.Random(5)
        lines = []
        for at in range(30_000):
            half, failed = at // 15_000, draw.random() < (last if at >= 15_000 else 0.02)
            if draw.random() < samples[half] or failed:
                more = {"error": "E"} if failed else {}
                lines.append(line(float(at), version=str(half), sample=samples[half], **more))
        return report([write(tmp_path / "log", lines)]).models[0].drifts

    for samples in ((1.0, 1.0), (0.05, 0.05), (0.05, 1.0)):
        assert drifts(0.02, samples) == drifts(0.04, samples) == ()
        drifted = drifts(0.3, samples)
        assert len(drifted) == 2
        for drift in drifted:
            assert drift.what == "failed"
            assert drift.psi == pytest.approx(0.85, rel=0.1)


def test_requests_beside_a_recompilation_are_set_apart(tmp_path):
    lines = [line(at * 2.0, device="a", recompiles=3 + (at >= 50), ms=900.0 if at == 50 else 10.0) for at in range(100)]
    compiling, others = report([write(tmp_path / "log", lines)]).models[0].compiling
    assert (compiling.requests, compiling.p50_ms) == (1, 900.0)
    assert (others.requests, others.p50_ms) == (99, 10.0)


def test_what_was_written_twice_counts_once_and_what_cannot_be_read_is_told(tmp_path):
    lines = [line(float(at), device="a") for at in range(10)]
    path = write(tmp_path / "log", [*lines, *lines[5:]])
    with path.open("a") as file:
        file.write('{"half of a li\n\n[]\n')
    packed = tmp_path / "log.1.gz"
    packed.write_bytes(gzip.compress((json.dumps(line(99.0, device="b")) + "\n").encode()))
    result = report([path, packed])
    assert (result.requests, result.repeated) == (11, 5)
    assert [note.message.split()[0] for note in result.notes] == ["2", "5"]


def test_a_failure_is_no_copy_of_the_answer_in_the_same_microsecond(tmp_path):
    result = report([write(tmp_path / "log", [line(1.0), line(1.0, error="ValueError"), line(1.0)])])
    assert (result.requests, result.repeated, result.models[0].whole.failed) == (2, 1, 1)


def test_a_log_of_a_share_of_the_requests_counts_all(tmp_path):
    path = tmp_path / "requests.jsonl"
    with Monitor(JsonLog(path, sample=0.05)) as monitor:
        model = monitor.observe("detector")
        for at in range(20_000):
            with model.request() as request:
                request.nan = at % 100 == 0
    result = report([path])
    whole = result.models[0].whole
    assert whole.failed == 200
    assert whole.requests == result.requests == pytest.approx(20_000, rel=0.15)
    assert any("estimates" in note.message for note in result.notes)


def test_a_damaged_compressed_log_is_told(tmp_path):
    data = bytearray(gzip.compress(json.dumps([random.Random(at).random() for at in range(99)]).encode()))
    data[30:70] = bytes(40)
    (tmp_path / "log.gz").write_bytes(data)
    with pytest.raises(SampleError, match="cannot be read"):
        report([tmp_path / "log.gz"])


def test_no_record_and_no_file_are_errors(tmp_path):
    with pytest.raises(SampleError, match="expected lines of requests"):
        report([write(tmp_path / "log", [])])
    with pytest.raises(SampleError, match="cannot be read"):
        report([tmp_path / "none"])


def test_what_the_product_logs_is_read_and_every_form_shows_it(tmp_path):
    path = tmp_path / "requests.jsonl"
    with Monitor(JsonLog(path, device="cam-7")) as monitor:
        model = monitor.observe("detector", version="2.1")
        for at in range(150):
            with model.request(size=at % 3 + 1) as request:
                request.fields = {"request_id": f"r-{at}"}
    printed = CliRunner().invoke(cli, ["monitor", "report", str(path)])
    assert printed.exit_code == 0
    assert "detector: 150 requests" in printed.stdout
    assert "by size" in printed.stdout
    markdown = CliRunner().invoke(cli, ["monitor", "report", str(path), "--markdown"])
    assert "| by version |" in markdown.stdout
    document = CliRunner().invoke(cli, ["monitor", "report", str(path), "--json"])
    assert decode(document.stdout_bytes, "torchtriage-records/1").requests == 150
    page = tmp_path / "page.html"
    assert (
        CliRunner()
        .invoke(cli, ["monitor", "report", str(path), "--html", str(page), "-o", str(tmp_path / "o")])
        .exit_code
        == 0
    )
    assert "detector" in page.read_text()
    lost = CliRunner().invoke(cli, ["monitor", "report", str(tmp_path / "none")])
    assert lost.exit_code == 2


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("odd", "n_read"),
    [({"size": 2**63}, 3), ({"at_s": 1e300}, 3), ({"duration_ns": 10**30}, 3), ({"fields": {"a": 10**400}}, 4)],
)
def test_a_line_with_a_number_out_of_bounds_ends_no_report(tmp_path, odd, n_read):
    lines = [line(at, fields={"a": at}) for at in range(3)] + [line(3, fields={"a": 1}) | odd]
    result = report([write(tmp_path / "log", lines)])
    assert result.requests == n_read
    assert any(note.code == "lines" for note in result.notes) == (n_read == 3)
