from __future__ import annotations

from dataclasses import replace

from builder import TraceBuilder
from diagnose.ranks.jobs import job, records, shifted

from torchtriage.diagnose.ranks.job_detection import detect_jobs
from torchtriage.diagnose.ranks.rank_record import RankRecord


def at(records_: list[RankRecord], names: list[str]) -> list[RankRecord]:
    return [replace(one, path=name) for one, name in zip(records_, names, strict=True)]


def codes(ranks: list[RankRecord]) -> list[list[str]]:
    return [[note.code for note in detect_job.notes] for detect_job in detect_jobs(ranks)]


def silent(builders: list[TraceBuilder]) -> list[TraceBuilder]:
    for builder in builders:
        del builder.meta["distributedInfo"]
    return builders


def test_files_that_say_rank_and_world_size() -> None:
    ranks = records(job())
    (one,) = detect_jobs(list(reversed(ranks)))
    assert one.numbers == (0, 1, 2, 3)
    assert one.positions == (3, 2, 1, 0)
    assert one.world_size == 4
    assert "the files say" in one.basis
    assert one.notes == ()


def test_missing_ranks_are_said() -> None:
    ranks = records(job())
    (one,) = detect_jobs([ranks[0], ranks[3]])
    assert one.numbers == (0, 3)
    (note,) = one.notes
    assert (note.code, note.level) == ("rank-missing", "warn")
    assert note.message.startswith("2 of 4 ranks were not given (1, 2)")


def test_one_rank_is_no_job() -> None:
    assert detect_jobs(records(job())[:1]) == []


def test_a_rank_recorded_twice_is_left_out_whole() -> None:
    ranks = records(job())
    (one,) = detect_jobs([*ranks, replace(ranks[1], path="run/copy.json")])
    assert one.numbers == (0, 2, 3)
    assert one.positions == (0, 2, 3)
    assert [note.code for note in one.notes] == ["rank-duplicate"]
    assert "copy.json" in one.notes[0].message


def test_a_job_of_which_every_rank_is_there_twice_is_none() -> None:
    ranks = records(job())
    assert detect_jobs([*ranks, *(replace(rank, path=f"{rank.path}.copy") for rank in ranks)]) == []


def test_a_rank_without_a_whole_step_does_not_end_the_job() -> None:
    ranks = records(job())
    steps = ranks[1].steps
    cut = replace(
        steps, **{name: getattr(steps, name)[:1] for name in ("number", "start_ns", "end_ns", "steady", "parts_ns")}
    )
    (one,) = detect_jobs([ranks[0], replace(ranks[1], steps=cut), *ranks[2:]])
    assert one.numbers == (0, 2, 3)
    assert [note.code for note in one.notes] == ["rank-skewed"]


def test_two_recordings_of_one_job_are_two() -> None:
    first = records(job(2))
    second = records([shifted(one, 10_000_000) for one in job(2)])
    found = detect_jobs([first[0], second[0], first[1], second[1]])
    assert [one.positions for one in found] == [(0, 2), (1, 3)]


def test_two_jobs_in_two_folders_are_two() -> None:
    found = detect_jobs([*records(job(2), "a"), *records(job(2), "b")])
    assert [one.positions for one in found] == [(0, 1), (2, 3)]


def test_a_rank_that_recorded_other_steps_is_said() -> None:
    builders = job()
    for event in builders[2].events:
        if event["name"].startswith("ProfilerStep#"):
            event["name"] = f"ProfilerStep#{int(event['name'][13:]) + 500}"
    (one,) = detect_jobs(records(builders))
    assert one.numbers == (0, 1, 3)
    assert [note.code for note in one.notes] == ["rank-skewed"]
    assert one.notes[0].evidence["ranks"] == [2]


def test_ranks_by_file_name_are_assumed_and_said() -> None:
    ranks = records(silent(job(2)))
    found = detect_jobs(at(ranks, ["run/worker3_step_12.json", "run/worker1_step_12.json"]))
    (one,) = found
    assert one.numbers == (1, 3)
    assert one.basis.startswith("assumed: file names")
    assert [note.code for note in one.notes] == ["ranks-assumed"]
    assert one.world_size is None


def test_ranks_by_what_they_exchange_are_assumed_and_said() -> None:
    ranks = records(silent(job(2)))
    (one,) = detect_jobs(at(ranks, ["run/a.json", "run/b.json"]))
    assert one.numbers == (0, 1)
    assert "collectives match" in one.basis


def test_unrelated_files_stay_apart() -> None:
    # no collectives; other times; another world; world size 1
    plain = [TraceBuilder(), TraceBuilder()]
    for builder in plain:
        builder.step(1, 0, 100).op("aten::mm", 5, 20).launch(8, 5, 20, 50)
    assert detect_jobs(at(records(plain), ["rank0.json", "rank1.json"])) == []
    apart = silent(job(2))
    shifted(apart[1], 90_000_000)
    assert detect_jobs(at(records(apart), ["rank0.json", "rank1.json"])) == []
    alone = job(2)
    for builder in alone:
        builder.meta["distributedInfo"].update(rank=0, world_size=1)
    assert detect_jobs(records(alone)) == []
    worlds = [job(2)[0], job(4)[1]]
    assert detect_jobs(records(worlds)) == []


def test_different_programs_at_the_same_time_stay_apart() -> None:
    one, other = silent(job(2))[0], silent(job(2, n_steps=9))[1]
    shifted(other, 777)
    assert detect_jobs(at(records([one, other]), ["a.json", "b.json"])) == []
