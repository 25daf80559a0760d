"""The loop finds wrong labels, changes them for a reason, writes that down, and ends."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
from click.testing import CliRunner, Result

from torchtriage.core.errors import UsageError
from torchtriage.diagnose.detector.detector import Judged
from torchtriage.learn.dataset.recordings import DatasetItem
from torchtriage.learn.review.evidence import Evidence, EvidenceLine
from torchtriage.learn.review.reviewer import NONE, Outcome, Review, check
from torchtriage_benchmark.commands import labels as commands
from torchtriage_benchmark.training.active_learning import (
    Findings,
    Judge,
    Labelled,
    Report,
    Round,
    Settings,
    iterate,
    relabelled,
)
from torchtriage_benchmark.training.labels import History, Labels, Sentence, recorded_labels
from torchtriage_benchmark.training.training_set import Example

labels_group = click.Group(commands={"iterate": commands.iterate, "audit": commands.audit, "veto": commands.veto})
N_WINDOWS = 40
FAMILIES = ("a", "b", "c", "d")
CODES = ("LCH016", "DAT018")


def items(n: int = 24, seed: int = 0) -> list[Example]:
    """Recordings whose windows have one number: high where they are faulty."""
    rng = np.random.default_rng(seed)
    found = []
    for at in range(n):
        code = CODES[at % 4 % 2] if at % 4 < 2 else ""
        split = "validation" if at % 6 == 5 else "train"
        about: dict[str, Any] = {
            "id": f"{at:04d}",
            "code": code,
            "family": FAMILIES[at % 5 % 4],
            "split": split,
            "intervals_ns": [[1000, 2000]] if code else [],
            "sha256": "",
            "step_ns": [1],
        }
        one = Example(about, Path("nowhere"))
        edges = np.arange(N_WINDOWS + 1) * 100
        windows = np.stack([edges[:-1], edges[1:]], axis=1)
        truth = np.zeros(N_WINDOWS) if not code else (np.arange(N_WINDOWS) // 10 == 1).astype(float)
        rows = (truth * 2 + rng.normal(0, 0.7, N_WINDOWS))[:, None].astype(np.float32)
        one.__dict__["looked"] = {"windows_ns": windows, "features": rows}
        found.append(one)
    return found


def corrupted(labels: Labels) -> Labels:
    """Return labels of which a fifth is wrong."""
    rng = np.random.default_rng(1)
    return {
        item: tuple((NONE if code != NONE else CODES[0]) if rng.random() < 0.2 else code for code in codes)
        for item, codes in labels.items()
    }


def toy(learn: Sequence[Labelled], tune: Sequence[Labelled]) -> Judge:
    """Learn two means of one number."""
    rows = np.concatenate([one.features[:, 0] for one in learn])
    truth = np.concatenate([one.faulty for one in learn])
    high, low = rows[truth].mean(), rows[~truth].mean()
    width = (high - low) / 2 + 1e-9

    def judge(one: Labelled) -> Judged:
        margin = (one.features[:, 0] - (high + low) / 2) / width * 3
        likely = 1 / (1 + np.exp(-margin.astype(float)))
        return Judged(likely, (dict.fromkeys(CODES, 0.5),) * len(likely), np.zeros(len(likely), bool))

    return judge


class Seen(Findings):
    """Evidence that is the window's place alone."""

    def __init__(self, **_: Any) -> None:
        super().__init__()

    def of(self, item: DatasetItem, windows: Any) -> list[Evidence]:
        return [
            Evidence((at, at + 1), (EvidenceLine("e1", "window", f"{item.id} {at}"),), CODES, True) for at in windows
        ]


class Oracle:
    """Knows the truth; says what it is told to say besides."""

    name = "oracle"

    def __init__(self, truth: Labels, confidence: float = 0.95, silent_on: int = 0) -> None:
        self.truth, self.confidence, self.silent_on = truth, confidence, silent_on
        self.asked: list[str] = []

    def review_all(self, evidence: Sequence[Evidence], told: Any) -> tuple[Outcome, ...]:
        outcomes = []
        for at, one in enumerate(evidence):
            item, window = one.lines[0].text.split()
            self.asked.append(one.lines[0].text)
            if at < self.silent_on:
                outcomes.append(Outcome(one, None, "refused"))
                continue
            code = self.truth[item][int(window)]
            why = ("e1",)
            outcomes.append(Outcome(one, Review(code, self.confidence, why)))
        return tuple(outcomes)


def loop(tmp_path: Path, labels: Labels, reviewer: Any, seen: list[Round] | None = None, **settings: Any) -> Report:
    return iterate(
        items(),
        labels,
        reviewer,
        toy,
        History.read(tmp_path / "labels.jsonl"),
        settings=Settings(**{"windows": 10_000, **settings}),
        evidence=Seen(),
        report=(seen if seen is not None else []).append,
    )


def wrong(labels: Labels, truth: Labels) -> int:
    return sum(a != b for key in truth for a, b in zip(labels[key], truth[key], strict=True))


def test_wrong_labels_are_found_and_put_right(tmp_path: Path) -> None:
    truth = recorded_labels(items())
    bad = corrupted(truth)
    rounds: list[Round] = []
    report = loop(tmp_path, bad, Oracle(truth), rounds, trust=0.8)
    assert wrong(report.labels, truth) < wrong(bad, truth) / 3
    assert list(report.rounds) == rounds
    assert rounds[-1].validation > rounds[0].validation + 0.05
    assert [one.number for one in rounds] == list(range(len(rounds)))


def test_every_change_is_in_the_history_with_its_evidence(tmp_path: Path) -> None:
    truth = recorded_labels(items())
    bad = corrupted(truth)
    report = loop(tmp_path, bad, Oracle(truth))
    history = History.read(tmp_path / "labels.jsonl")
    assert len(history.changes) == sum(one.changed for one in report.rounds)
    assert history.apply(bad) == report.labels
    for change in history.changes:
        assert (change.who, change.action, change.confidence) == ("oracle", "relabel", 0.95)
        assert change.why == (Sentence("", ("e1",)),)
        assert change.cited[0] == ("e1", f"{change.item} {change.window}")
        assert change.digest
        assert change.before != change.after


def test_the_loop_goes_on_where_it_stopped(tmp_path: Path) -> None:
    truth = recorded_labels(items())
    bad = corrupted(truth)
    first = loop(tmp_path, bad, Oracle(truth), windows=40)
    again = loop(tmp_path, bad, Oracle(truth), windows=40)
    assert wrong(again.labels, truth) < wrong(first.labels, truth)
    assert again.rounds[0].validation == first.rounds[-1].validation


def test_labels_that_are_right_end_it(tmp_path: Path) -> None:
    truth = recorded_labels(items())
    report = loop(tmp_path, truth, Oracle(truth))
    assert report.ended == "no label was changed"
    assert len(report.rounds) == 2
    assert report.labels == truth
    assert not (tmp_path / "labels.jsonl").exists()


def test_it_ends_when_the_score_settles(tmp_path: Path) -> None:
    truth = recorded_labels(items())
    report = loop(tmp_path, corrupted(truth), Oracle(truth), settled=1.0)
    assert report.ended == "the validation score has settled"
    assert len(report.rounds) == 2


def test_who_is_not_surer_than_labels_are_worth_changes_none(tmp_path: Path) -> None:
    truth = recorded_labels(items())
    bad = corrupted(truth)
    report = loop(tmp_path, bad, Oracle(truth, confidence=0.8))
    assert report.labels == bad
    assert report.rounds[1].kept == report.rounds[1].proposed > 0


class Other(Oracle):
    """Says of every window that is proposed the fault it has not, or that it has one."""

    name = "other"

    def review_all(self, evidence: Sequence[Evidence], told: Any) -> tuple[Outcome, ...]:
        outcomes = []
        for one in evidence:
            item, window = one.lines[0].text.split()
            code = CODES[0] if self.truth[item][int(window)] == NONE else NONE
            outcomes.append(Outcome(one, Review(code, 1.0, ("e1",))))
        return tuple(outcomes)


def test_a_label_changes_only_where_reviewer_and_detector_say_the_same(tmp_path: Path) -> None:
    truth = recorded_labels(items())

    def train(learn: Sequence[Labelled], tune: Sequence[Labelled]) -> Judge:
        def sure(one: Labelled) -> Judged:
            likely = np.array([0.9 if code == NONE else 0.1 for code in truth[one.id]])
            return Judged(likely, ({CODES[1]: 1.0},) * len(likely), np.zeros(len(likely), bool))

        return sure

    def changed(reviewer: Any, train: Any = train) -> set[tuple[str, str]]:
        history = History(tmp_path / "none")
        history.path.unlink(missing_ok=True)
        settings = Settings(windows=10_000, rounds=1, trust=0.8, settled=1.0)
        iterate(items(), truth, reviewer, train, history, settings=settings, evidence=Seen())
        return {(change.before, change.after) for change in history.changes}

    def unsure(learn: Sequence[Labelled], tune: Sequence[Labelled]) -> Judge:
        def judge(one: Labelled) -> Judged:
            likely = np.array([0.6 if code == NONE else 0.4 for code in truth[one.id]])
            return Judged(likely, (dict.fromkeys(CODES, 0.5),) * len(likely), np.zeros(len(likely), bool))

        return judge

    assert not changed(Other(truth), unsure)
    # the detector means the other fault: only where it sees none do both say the same
    assert changed(Other(truth)) == {(CODES[0], NONE), (CODES[1], NONE)}
    person = Other(truth)
    person.name = "person/anna"
    assert (NONE, CODES[0]) in changed(person)


def test_a_round_that_makes_validation_worse_is_taken_back(tmp_path: Path) -> None:
    truth = recorded_labels(items())
    trained: list[int] = []

    def train(learn: Sequence[Labelled], tune: Sequence[Labelled]) -> Judge:
        """Is good at first, and after a change the opposite of it."""
        good, wrongly = toy(learn, tune), any(one.labels != truth[one.id] for one in (*learn, *tune))
        trained.append(1)

        def judge(one: Labelled) -> Judged:
            said = good(one)
            likely = 1 - said.probability if wrongly else said.probability
            return Judged(likely, said.types, said.unusual)

        return judge

    history = History(tmp_path / "labels.jsonl")
    report = iterate(items(), truth, Other(truth), train, history, settings=Settings(windows=10_000), evidence=Seen())
    assert report.ended == "the last round made validation worse and was taken back"
    assert report.labels == truth
    assert report.rounds[-1].undone
    assert report.rounds[-1].changed > 0
    assert report.rounds[-1].validation == report.rounds[0].validation
    assert list(history.standing) == []


def test_hostile_and_invented_answers_change_no_label(tmp_path: Path) -> None:
    answers = Path(__file__).parents[2] / "learn" / "review" / "answers"
    windows = json.loads((answers / "windows.json").read_bytes())
    hostile = json.loads((answers / "hostile.json").read_bytes())
    asked: list[int] = []

    class Hostile:
        name = "llm/hostile"

        def review_all(self, evidence: Sequence[Evidence], told: Any) -> tuple[Outcome, ...]:
            return tuple(map(self.review, evidence))

        def review(self, _: Evidence) -> Outcome:
            one = hostile[len(asked) % len(hostile)]
            asked.append(1)
            about = windows[one["window"]]
            lines = tuple(EvidenceLine(**line) for line in about["lines"])
            evidence = Evidence((0, 1), lines, tuple(about["codes"]), True)
            try:
                return Outcome(evidence, check(json.loads(one["reply"]), evidence))
            except ValueError as error:
                return Outcome(evidence, None, str(error))

    bad = corrupted(recorded_labels(items()))
    report = loop(tmp_path, bad, Hostile())
    assert len(asked) >= len(hostile)
    assert report.labels == bad


def test_what_is_not_reviewed_is_counted_with_the_reason(tmp_path: Path) -> None:
    truth = recorded_labels(items())
    report = loop(tmp_path, corrupted(truth), Oracle(truth, silent_on=7), windows=30, rounds=1)
    last = report.rounds[-1]
    assert last.not_reviewed == {"refused": 7}
    assert last.proposed == 30 == last.changed + last.kept + 7


def test_a_window_is_not_reviewed_again_for_nothing(tmp_path: Path) -> None:
    truth = recorded_labels(items())
    oracle = Oracle(truth, confidence=0.5)
    loop(tmp_path, corrupted(truth), oracle, moved=2.0)
    assert len(set(oracle.asked)) == len(oracle.asked)


def test_a_window_that_a_person_has_judged_is_left_alone(tmp_path: Path) -> None:
    truth = recorded_labels(items())
    bad = corrupted(truth)
    loop(tmp_path, bad, Oracle(truth), rounds=1)
    history = History.read(tmp_path / "labels.jsonl")
    change = history.changes[0]
    history.veto(change.number, who="anna", why="the recording is right")
    oracle = Oracle(truth)
    report = loop(tmp_path, bad, oracle)
    assert report.labels[change.item][change.window] == change.before
    assert f"{change.item} {change.window}" not in oracle.asked


def test_a_window_whose_fault_is_another_is_proposed_and_learned(tmp_path: Path) -> None:
    truth = recorded_labels(items())
    first = next(key for key, codes in truth.items() if CODES[0] in codes)
    wrong_type = tuple(CODES[1] if code == CODES[0] else code for code in truth[first])

    def train(learn: Sequence[Labelled], tune: Sequence[Labelled]) -> Judge:
        judge = toy(learn, tune)

        def named(one: Labelled) -> Judged:
            types = tuple({code: 1.0} if code != NONE else {} for code in truth[one.id])
            return Judged(judge(one).probability, types, np.zeros(len(types), bool))

        return named

    report = iterate(
        items(),
        truth | {first: wrong_type},
        Oracle(truth),
        train,
        History(tmp_path / "x"),
        settings=Settings(rounds=1, windows=500, trust=0.8),
        evidence=Seen(),
    )
    right = [now == code for now, code in zip(report.labels[first], truth[first], strict=True)]
    assert sum(right) >= len(right) - 3  # all that the toy is sure of
    (one,) = (item for item in items() if item.id == first)
    assert Labelled(one.about, one.path, ("A", NONE, "B")).codes == ("A", "", "B")


def test_windows_that_a_person_named_are_closed(tmp_path: Path) -> None:
    history = History.read(tmp_path / "labels.jsonl")
    history.append(who="person/anna", item="0001", window=3, before=NONE, after="LCH016")
    history.append(who="offline", item="0001", window=4, before=NONE, after="LCH016")
    assert history.closed == {("0001", 3)}


def test_what_was_made_from_a_model_is_not_learned_from(tmp_path: Path) -> None:
    some = items()
    some[0].about["part"] = "synthetic"
    report = iterate(
        some,
        recorded_labels(some),
        Oracle(recorded_labels(some)),
        toy,
        History(tmp_path / "x"),
        settings=Settings(rounds=1),
        evidence=Seen(),
    )
    assert report.rounds
    learn, tune = relabelled(some, report.labels)
    assert some[0].id not in {one.id for one in (*learn, *tune)}


def test_no_family_is_judged_by_what_has_learned_from_it(tmp_path: Path) -> None:
    learned: list[set[str]] = []
    judged: list[set[str]] = []

    def train(learn: Sequence[Labelled], tune: Sequence[Labelled]) -> Judge:
        judge, families, seen = toy(learn, tune), {one.about["family"] for one in learn}, set()
        learned.append(families)
        judged.append(seen)

        def watched(one: Labelled) -> Judged:
            if one.split == "train":
                seen.add(one.about["family"])
            return judge(one)

        return watched

    truth = recorded_labels(items())
    iterate(
        items(),
        corrupted(truth),
        Oracle(truth),
        train,
        History(tmp_path / "x"),
        settings=Settings(rounds=1),
        evidence=Seen(),
    )
    assert set.union(*judged) == set(FAMILIES)
    assert all(not a & b for a, b in zip(learned, judged, strict=True))


def test_too_few_families(tmp_path: Path) -> None:
    truth = recorded_labels(items())
    with pytest.raises(UsageError, match="at least 9 model families"):
        loop(tmp_path, truth, Oracle(truth), folds=9)


def test_a_recording_is_of_the_fault_most_of_its_windows_have() -> None:
    one = items()[0]
    assert Labelled(one.about, one.path, (NONE, "B", "A", "B")).code == "B"
    assert Labelled(one.about, one.path, (NONE, "B", "A")).code == "A"
    assert Labelled(one.about, one.path, (NONE,)).code == ""


# -- the history -----------------------------------------------------------------------------------


def changed(path: Path, n: int = 3) -> History:
    history = History.read(path)
    for at in range(n):
        history.append(who="x", item="0001", window=at, before=NONE, after="LCH016")
    return history


def test_a_history_is_read_back(tmp_path: Path) -> None:
    written = changed(tmp_path / "labels.jsonl")
    read = History.read(tmp_path / "labels.jsonl")
    assert read.changes == written.changes
    assert [change.number for change in read.changes] == [1, 2, 3]
    assert read.changes[0].at.endswith("+00:00")
    assert read.apply({"0001": (NONE,) * 4, "2": ("X",)}) == {"0001": ("LCH016",) * 3 + (NONE,), "2": ("X",)}


def test_a_line_that_was_cut_off_loses_no_other(tmp_path: Path) -> None:
    path = tmp_path / "labels.jsonl"
    changed(path)
    path.write_bytes(path.read_bytes()[:-20])
    cut = History.read(path)
    assert (len(cut.changes), cut.damaged) == (2, (3,))
    cut.append(who="x", item="0001", window=9, before=NONE, after="LCH016")
    again = History.read(path)
    assert [change.number for change in again.changes] == [1, 2, 4]
    assert again.damaged == (3,)
    assert len(path.read_text().splitlines()) == 4


def test_a_veto_takes_a_change_back_once(tmp_path: Path) -> None:
    path = tmp_path / "labels.jsonl"
    history = changed(path)
    veto = history.veto(2, who="anna", why="no")
    assert (veto.action, veto.before, veto.after, veto.vetoes) == ("veto", "LCH016", NONE, 2)
    read = History.read(path)
    assert read.apply({"0001": (NONE,) * 3})["0001"] == ("LCH016", NONE, "LCH016")
    assert [one.number for one in read.standing] == [1, 3]
    assert read.closed == {("0001", 1)}
    for number, said in ((2, "was taken back by 4"), (4, "found 4"), (9, "found 9")):
        with pytest.raises(UsageError, match=said):
            read.veto(number, who="anna", why="no")


def test_a_change_that_was_replaced_cannot_be_taken_back(tmp_path: Path) -> None:
    history = changed(tmp_path / "labels.jsonl", 1)
    history.append(who="y", item="0001", window=0, before="LCH016", after="DAT018")
    with pytest.raises(UsageError, match="was replaced by 2"):
        history.veto(1, who="anna", why="no")


def test_lines_are_only_ever_added(tmp_path: Path) -> None:
    path = tmp_path / "labels.jsonl"
    history = changed(path)
    before = path.read_bytes()
    history.veto(1, who="anna", why="no")
    assert path.read_bytes().startswith(before)
    assert json.loads(path.read_bytes().splitlines()[-1])["who"] == "anna"


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="cannot be written"):
        changed(tmp_path / "file" / "labels.jsonl")


# -- the commands ----------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder whose recordings are made up and whose detector learns two means."""
    bad = corrupted(recorded_labels(items()))
    monkeypatch.setattr("torchtriage_benchmark.training.training_set.examples", lambda *_, **__: items())
    monkeypatch.setattr("torchtriage_benchmark.training.labels.recorded_labels", lambda _: bad)
    monkeypatch.setattr("torchtriage_benchmark.training.active_learning.boosted_trees", lambda _seed: toy)
    monkeypatch.setattr("torchtriage_benchmark.training.active_learning.Findings", Seen)
    return tmp_path


def run(*args: str, text: str = "") -> Result:
    return CliRunner().invoke(labels_group, list(args), input=text)


def test_a_person_iterates_then_audits_and_vetoes(folder: Path) -> None:
    answers = "LCH016\nit is slow, see e1\n95\n" * 2 + "s\nq\n"
    done = run("iterate", str(folder), "--reviewer", "person", "--who", "anna", text=answers)
    assert "before: validation AUROC 0." in done.stdout
    assert "not reviewed, 1: skipped" in done.stdout
    assert "ended: interrupted" in done.stdout
    told = run("audit", str(folder))
    lines = told.stdout.splitlines()
    assert lines[0] == "person/anna: 2 changes"
    assert "none -> LCH016 (confidence 0.95): it is slow, see e1 [e1]" in lines[1]
    taken = run("veto", str(folder), "1", "--who", "ben", "--why", "no")
    assert taken.stdout.startswith("change 1 is taken back: item ")
    after = run("audit", str(folder)).stdout
    assert "ben: 1 vetoes" in after
    assert "taken back): it is slow" in after
    rows = [json.loads(splitline) for splitline in run("audit", str(folder), "--json").stdout.splitlines()]
    assert [row["action"] for row in rows] == ["relabel"] * 2 + ["veto"]
    assert run("audit", str(folder), "--who", "ben").stdout.count("\n") == 2


def test_the_offline_reviewer_iterates(folder: Path) -> None:
    done = run("iterate", str(folder), "--rounds", "1", "-q")
    assert done.exit_code == 0, done.output
    assert "round 1: 200 windows proposed, " in done.stdout


def test_an_audit_of_nothing(tmp_path: Path) -> None:
    assert run("audit", str(tmp_path)).stdout == "no label was changed\n"


def test_a_line_that_was_cut_off_is_told(tmp_path: Path) -> None:
    path = tmp_path / "labels.jsonl"
    changed(path)
    path.write_bytes(path.read_bytes()[:-20])
    told = run("audit", str(tmp_path))
    assert told.stderr == f"{path}: cut off and left out: line 3\n"
    assert told.stdout.startswith("x: 2 changes\n")
