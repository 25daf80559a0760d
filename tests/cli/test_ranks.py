"""Several ranks on the command line: one verdict for the job, in every form."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result
from diagnose.ranks.jobs import job, merged, write

from torchtriage.report import json_report

Run = Callable[..., Result]


@pytest.fixture
def late(folder: Path) -> Path:
    """Return a folder with four ranks, one of them late."""
    write(job(4, late={2: 4000}), folder / "late")
    return folder / "late"


def test_a_folder_of_ranks_gets_one_verdict(run: Run, late: Path) -> None:
    result = run("analyze", "late", code=0)
    assert result.stdout.startswith("4 ranks of one job, 5 common steady steps")
    assert result.stdout.count("Rank 2 makes the others wait (COM036)") == 1
    assert "the files say rank and world size (4)" in run("analyze", "late", "-v", code=0).stdout
    lines = [line for line in result.stdout.splitlines() if line.startswith("  rank ")]
    assert [line.split()[1] for line in lines] == ["0", "1", "2", "3"]
    assert "others wait 4.00 ms" in lines[2]
    assert all("waits 4.00 ms" in lines[at] for at in (0, 1, 3))


def test_ranks_merged_into_one_file_get_the_same_verdict(run: Run, late: Path, folder: Path) -> None:
    (folder / "merged.json").write_bytes(merged(job(4, late={2: 4000})).json())
    # each rank has a device number of its own there
    found = run("analyze", "merged.json", code=0).stdout.replace("GPU 2", "GPU 0")
    assert found == run("analyze", "late").stdout
    assert (
        "expected a file for each rank, found ranks merged into one"
        in run("analyze", "merged.json", "--perfetto", "out.json", code=2).stderr
    )
    assert "judge the ranks together" in run("doctor", "merged.json", code=2).stdout


def test_a_pattern_of_names_is_expanded(run: Run, late: Path) -> None:
    assert run("analyze", "late/*.json").stdout == run("analyze", "late").stdout
    run("analyze", "late/*.zip", code=2)


def test_unrelated_files_keep_their_own_reports(run: Run, late: Path) -> None:
    result = run("analyze", "late", "slow.json", "fine.json")
    assert result.stdout.count("ranks of one job") == 2  # its headline and its first sentence
    assert "slow.json" in result.stdout
    assert "2 traces" in result.stdout
    assert "late/rank0.json" not in result.stdout


def test_fail_on_is_about_the_job(run: Run, late: Path) -> None:
    run("analyze", "late", "--fail-on", "high", code=1)
    assert "COM036" not in run("analyze", "late", "--skip", "rank-straggler", code=0).stdout
    assert "COM036" in run("analyze", "late", "--only", "COM036", code=0).stdout
    assert "COM036" not in run("analyze", "late", "--only", "COM035", code=0).stdout
    write(job(4), late.parent / "even")
    run("analyze", "even", "--fail-on", "high", code=0)


def test_a_missing_rank_is_said(run: Run, late: Path) -> None:
    (late / "rank3.json").unlink()
    out = " ".join(run("analyze", "late").stdout.split())
    assert "1 of 4 ranks were not given (3)" in out


def test_the_document_holds_job_and_ranks(run: Run, late: Path) -> None:
    data = run("analyze", "late", "--json").stdout_bytes
    document = json.loads(data)
    assert len(document["results"]) == 4
    (one,) = document["jobs"]
    assert [rank["rank"] for rank in one["ranks"]] == [0, 1, 2, 3]
    assert one["findings"][0]["ranks"]["n_ranks"] == 4
    saved = json_report.read(data)
    assert json_report.encode(saved.results, saved.jobs) == data


def test_a_saved_document_shows_the_same_again(run: Run, late: Path, folder: Path) -> None:
    run("analyze", "late", "--json", "-o", "saved.json", "--html", "page.html")
    assert run("show", "saved.json").stdout == run("analyze", "late").stdout
    assert (
        run("show", "saved.json", "--markdown").stdout.rstrip() == run("analyze", "late", "--markdown").stdout.rstrip()
    )
    run("show", "saved.json", "--html", "again.html")
    assert (folder / "again.html").read_bytes() == (folder / "page.html").read_bytes()


def test_markdown_lists_the_ranks(run: Run, late: Path) -> None:
    out = run("analyze", "late", "--markdown").stdout
    assert "| 2 | 10.9 ms |" in out
    assert out.count("<b> Rank 2 makes the others wait (COM036)</b>") == 1


def test_sarif_names_each_finding_once(run: Run, late: Path) -> None:
    (found,) = json.loads(run("analyze", "late", "--sarif").stdout)["runs"]
    codes = [one["ruleId"] for one in found["results"]]
    assert codes.count("COM036") == 1
    assert len(codes) == len(set(codes))


def test_ray_without_ray_is_one_line(run: Run, late: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    result = run("analyze", "late", "--engine", "ray", code=2)
    assert "torchtriage[cluster]" in result.stderr
