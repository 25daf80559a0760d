"""What the source says of lines that a run spent its time at, beside what its recording said."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.diagnose.runs.samples_builder import SamplesBuilder
from tests.diagnose.runs.test_sampled import OP, finding

from torchtriage.core.finding import Finding, Frame
from torchtriage.diagnose.runs.source_hints import with_source

SWAP = """\
import torch

class Service:
    @torch.no_grad()
    def answer(self, query):
        self.model.to(self.device)
        query = query.to(self.device)
        scores = self.model(query)
        best = scores.argmax()
        self.model.to("cpu")
        return best

def main(queries, service):
    for query in queries:
        service.answer(query)

main(queries, service)
"""
LINE = Frame("train.py", 6, "answer", exact=True, lines=(6,))
MAIN, CALL = "main(queries", "service.answer("


def swapped(folder: Path, *findings: Finding) -> list[Finding]:
    """Return what is left of findings, of a run that moves a model there and back in 7 of 10 ms."""
    built = SamplesBuilder(folder, SWAP)
    for _ in range(20):
        built.look(MAIN, CALL, "self.model.to(self", below=(OP,), ms=2)
        built.look(MAIN, CALL, "scores =", below=(OP,), ms=3)
        built.look(MAIN, CALL, 'self.model.to("cpu")', below=(OP,), ms=5)
        built.step()
    loop = built.loop(boundary=CALL)
    assert loop is not None
    where = [str(folder)]
    return list(
        with_source(findings, built.samples(), where, on_device=True, judged=(), timed=[(loop, 10.0)], view=built.view)
    )


def copied(code: str, share: float, line: int) -> Finding:
    seen = finding(code, share, 10.0, line)
    return replace(seen, family="copy", place=replace(seen.place, frame=Frame("train.py", line, "answer", exact=True)))


def test_a_model_that_is_moved_costs_both_ways(tmp_path: Path) -> None:
    (seen,) = swapped(tmp_path)
    assert (seen.code, seen.certainty) == ("CPY009", "likely")
    assert seen.place.frame is not None
    assert (seen.place.frame.line, seen.place.frame.lines) == (6, (6, 10))
    assert seen.cost is not None
    error = (0.7 * 0.3 / 59) ** 0.5
    assert seen.cost.share_high == pytest.approx(0.7 + error, abs=0.01)
    assert seen.cost.share_low == pytest.approx(0.5 * (0.7 - error), abs=0.01)


def test_copies_at_its_lines_are_explained_by_it(tmp_path: Path) -> None:
    (seen,) = swapped(tmp_path, copied("CPY007", 0.1, 6), copied("CPY006", 0.4, 10))
    assert seen.code == "CPY009"
    assert seen.cost is not None
    assert seen.cost.share_low == pytest.approx(0.1 + 0.4)  # what was sure of each part is sure of the whole


def test_copies_elsewhere_are_not(tmp_path: Path) -> None:
    assert {one.code for one in swapped(tmp_path, copied("CPY006", 0.4, 9))} == {"CPY006", "CPY009"}


def test_what_the_recording_saw_of_it_is_the_same_finding(tmp_path: Path) -> None:
    hot = copied("HST114", 0.2, 6)
    (seen,) = swapped(tmp_path, copied("CPY009", 0.6, 10), replace(hot, place=replace(hot.place, frame=LINE)))
    assert (seen.code, seen.certainty) == ("CPY009", "certain")
    assert seen.place.frame is not None
    assert (seen.place.frame.line, seen.place.frame.lines) == (10, (6, 10))
    assert seen.cost is not None
    assert seen.cost.share_low == 0.6


@pytest.mark.parametrize(("line", "code", "stays"), [(3, "KRN072", False), (3, "HST021", True), (4, "KRN072", True)])
def test_a_line_of_python_is_explained_within_its_loop_but_not_by_all_of_the_steps(
    tmp_path: Path, line: int, code: str, stays: bool
) -> None:
    source = "for batch in loader:\n    for row in batch:\n        total += row\n    seen = -1 in history\n    step()\n"
    built = SamplesBuilder(tmp_path, source)
    for _ in range(40):
        built.look("step()", below=(OP,), ms=4)
        built.look("seen =", ms=6)
        built.step()
    loop = built.loop(boundary="step()")
    assert loop is not None
    hot, other = copied("HST114", 0.0, line), copied(code, 0.0, {3: 2, 4: 5}[line])
    assert hot.cost is not None
    findings = [replace(found, cost=replace(hot.cost, high_ms=5.0, share_high=0.5)) for found in (hot, other)]
    where = [str(tmp_path)]
    left = with_source(
        findings, built.samples(), where, on_device=False, judged=(), timed=[(loop, 10.0)], view=built.view
    )
    assert ("HST114" in {found.code for found in left}) == stays


NORMS = """\
import torch

def train(model, batches, optimizer):
    for batch in batches:
        model(batch).backward()
        total = 0.0
        for parameter in model.parameters():
            total += parameter.grad.norm().item() ** 2
        optimizer.step()

train(model, batches, optimizer)
"""


@pytest.mark.parametrize(("waits", "least", "most"), [(0.0, 0.25, 0.3), (0.15, 0.05, 0.15)])
def test_a_wait_for_work_that_stays_is_not_surely_saved(
    tmp_path: Path, waits: float, least: float, most: float
) -> None:
    built = SamplesBuilder(tmp_path, NORMS)
    for _ in range(40):
        built.look("train(model", "model(batch)", below=(OP,), ms=4)
        built.look("train(model", "total +=", below=("torch/_tensor.py:item",), ms=6)
        built.step()
    loop = built.loop(boundary="model(batch)", operators=1.0, results=waits)
    assert loop is not None
    where = [str(tmp_path)]
    (seen,) = with_source((), built.samples(), where, on_device=True, judged=(), timed=[(loop, 10.0)], view=built.view)
    assert seen.code == "OPT041"
    assert seen.cost is not None
    assert seen.cost.share_high > 0.6
    assert least < seen.cost.share_low <= most


SORT = """\
import torch

def nearest(points, k):
    distances = torch.cdist(points, points)
    return distances.argsort(dim=-1)[:, :, :k]

for points in clouds:
    near = nearest(points, 20)
    optimizer.step()
"""


@pytest.mark.parametrize(("sort_ms", "low"), [(6, 0.27), (1, 0.0)])
def test_a_sort_of_which_little_is_used_has_the_time_of_its_line(tmp_path: Path, sort_ms: int, low: float) -> None:
    built = SamplesBuilder(tmp_path, SORT)
    for _ in range(20):
        built.look("near =", "return distances", below=(OP,), ms=sort_ms)
        built.look("near =", "distances =", below=(OP,), ms=10 - sort_ms)
        built.step()
    loop = built.loop(boundary="optimizer.step()")
    assert loop is not None
    (seen,) = with_source(
        (), built.samples(), [str(tmp_path)], on_device=False, judged=(), timed=[(loop, 10.0)], view=built.view
    )
    assert seen.code == "KRN101"
    assert seen.cost is not None
    assert seen.cost.share_low == pytest.approx(low, abs=0.02)
    assert seen.cost.share_high == pytest.approx(sort_ms / 10, abs=0.1)


CLOCKED = """
import time
import torch

model = torch.nn.Linear(4, 4).to(device)
for batch in loader:
    begin = time.time()
    model(batch).sum().backward()
    took = time.time() - begin
"""


@pytest.mark.parametrize("on_device", [True, False])
def test_a_clock_is_right_where_there_is_no_device_to_wait_for(tmp_path: Path, on_device: bool) -> None:
    built = SamplesBuilder(tmp_path, CLOCKED)
    for _ in range(20):
        built.look("model(batch)", below=(OP,))
        built.step()
    seen = with_source((), built.samples(), [str(tmp_path)], on_device=on_device, judged=(), timed=(), view=built.view)
    assert ("MSR034" in [finding.code for finding in seen]) == on_device


ONE_BY_ONE = """\
import torch

def scores(model, images):
    with torch.no_grad():
        for image in images:
            found = model(image.unsqueeze(0))
            end(found)

scores(model, images)
"""


@pytest.mark.parametrize(("held", "low"), [(0.0, 0.32), (0.4, 0.12), (0.9, 0.0)])
def test_a_batch_saves_nothing_of_long_operators(tmp_path: Path, held: float, low: float) -> None:
    built = SamplesBuilder(tmp_path, ONE_BY_ONE)
    for _ in range(40):
        built.look("scores(model, images)", "found =", below=(OP,), ms=7)
        built.look("scores(model, images)", "end(", ms=3)
        built.step()
    loop = built.loop(boundary="found =")
    assert loop is not None
    (seen,) = with_source(
        (),
        built.samples(),
        [str(tmp_path)],
        on_device=False,
        judged=(),
        timed=[(loop, 10.0)],
        view=built.view,
        held=held,
    )
    assert seen.code == "LCH107"
    assert seen.cost is not None
    assert seen.cost.share_low == pytest.approx(low, abs=0.03)


LOADED = """\
from torch.utils.data import DataLoader, Dataset

class Pictures(Dataset):
    def __getitem__(self, at):
        return load_picture(self.names[at])

for batch in DataLoader(Pictures(), batch_size=8):
    model(batch).sum().backward()
    optimizer.step()
"""


@pytest.mark.parametrize(("judged", "told"), [(("DAT018",), False), ((), True)])
def test_a_loader_that_costs_nothing_in_the_recording_is_not_told(
    tmp_path: Path, judged: tuple[str, ...], told: bool
) -> None:
    built = SamplesBuilder(tmp_path, LOADED)
    for _ in range(20):
        built.look("model(batch)", below=(OP,), ms=4)
        built.step()
    found = with_source([], built.samples(), [str(tmp_path)], on_device=False, judged=judged, timed=(), view=built.view)
    assert ("DAT018" in {finding.code for finding in found}) == told


PADS = """\
import torch

def collate(texts):
    return tokenizer(texts, padding="max_length", max_length=128, return_tensors="pt")

def main(loader, model, optimizer):
    for batch in loader:
        loss = model(**batch).loss
        loss.backward()
        optimizer.step()

main(DataLoader(data, collate_fn=collate), model, optimizer)
"""
AGAIN = "def report(texts):\n    return tokenizer(texts, padding='max_length', max_length=256)\n\ndef main"


@pytest.mark.parametrize(
    ("source", "codes", "lines"),
    [
        (PADS, ["DAT102"], [4]),
        (PADS.replace("def main", AGAIN), ["DAT102", "DAT102", "DAT102"], [8, 4, 7]),
        (PADS.replace('"max_length"', "True"), [], []),
    ],
)
def test_padding_that_is_measured_is_mended_where_the_source_makes_it(
    tmp_path: Path, source: str, codes: list[str], lines: list[int]
) -> None:
    built = SamplesBuilder(tmp_path, source)
    for _ in range(20):
        built.look("main(Data", "loss = model", below=(OP,), ms=8)
        built.look("main(Data", "optimizer.step()", below=(OP,), ms=2)
        built.step()
    loop = built.loop(boundary="optimizer.step()")
    assert loop is not None
    line = source.splitlines().index("        loss = model(**batch).loss") + 1
    lines = [line if number == 8 else number for number in lines]
    measured = finding("DAT102", 0.4, 10.0, line)
    measured = replace(measured, place=replace(measured.place, frame=Frame("train.py", line, "main", exact=True)))
    where = [str(tmp_path)]
    found = with_source(
        [measured], built.samples(), where, on_device=False, judged=(), timed=[(loop, 10.0)], view=built.view
    )
    frames = [seen.place.frame for seen in found]
    assert [seen.code for seen in found] == codes
    assert [frame.line for frame in frames if frame is not None] == lines
