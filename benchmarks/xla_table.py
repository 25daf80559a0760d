"""Write the table of docs/xla-measured.md again: how many graphs, why, and what it costs.

    make xla-env
    python benchmarks/xla_table.py                # all models, then the page
    python benchmarks/xla_table.py --only gpt     # one model; what was measured before is kept
    python benchmarks/xla_table.py --page         # the page alone, from what was measured

What is measured is kept in benchmarks/out/xla, one file for each model and mode.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from torchtriage.compile.xla.result import XlaModel
from torchtriage.compile.xla.verdict import judge
from torchtriage.report import formats
from torchtriage.report.documents import xla as words

HERE = Path(__file__).parent
ROOT = HERE.parent
KEPT = HERE / "out" / "xla"
PAGE = ROOT / "docs" / "xla-measured.md"
BEGIN, END = "<!-- table -->", "<!-- end of table -->"


def names() -> list[str]:
    """Return the names of the models, in the order of the table; the module needs torch."""
    import ast

    tree = ast.parse((HERE / "xla_models.py").read_text())
    (table,) = (
        node.value
        for node in tree.body
        if isinstance(node, ast.AnnAssign) and getattr(node.target, "id", "") == "FAMILIES"
    )
    assert isinstance(table, ast.Dict)
    return [
        one.id for row in table.values if isinstance(row, ast.Tuple) for one in row.elts if isinstance(one, ast.Name)
    ]


MODES = ("inference", "training")


def measure(name: str, mode: str, rounds: int) -> None:
    """Run one model in one mode, and keep the result."""
    KEPT.mkdir(parents=True, exist_ok=True)
    command = [
        sys.executable,
        "-m",
        "torchtriage",
        "xla",
        f"{HERE / 'xla_models.py'}:{name}",
        "--rounds",
        str(rounds),
        "--json",
        "--output",
        str(KEPT / f"{name}.{mode}.json"),
        *(["--train"] if mode == "training" else []),
    ]
    done = subprocess.run(command, cwd=ROOT, check=False)
    print(f"{name} {mode}: {'measured' if done.returncode == 0 else 'cannot be run'}", flush=True)


def kept() -> list[XlaModel]:
    """Return what has been measured, in the order of the table."""
    found = []
    for name in names():
        for mode in MODES:
            path = KEPT / f"{name}.{mode}.json"
            if path.exists():
                found += formats.decode(path.read_bytes(), "torchtriage-xla/1").models
    return found


def write_page() -> None:
    """Put the table into the page, between its marks."""
    models = kept()
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    table = "\n\n".join(_tables(models))
    PAGE.write_text(f"{before}{BEGIN}\n\n{table}\n\n{END}{after}", encoding="utf-8")
    print(f"{len(models)} models and modes in {PAGE.relative_to(ROOT)}")


def _tables(models: list[XlaModel]) -> Iterator[str]:
    result = judge(models)
    facts = dict(fact for model in models for fact in model.facts)
    yield ", ".join(f"{name} {value}" for name, value in sorted(facts.items())) + "."
    for train in (False, True):
        chosen = [one for one in models if one.train == train]
        if chosen:
            yield f"### {'Training' if train else 'Inference'}"
            yield _counts(chosen)
            if any(route.times for one in chosen for route in one.routes):
                yield _times(chosen)
    yield "### All together"
    yield "\n".join(f"- {line}" for line in result.verdict)
    told = [one for one in result.correlations if one.rho is not None]
    if told:
        yield "\n".join(f"- {words.correlation(one)}" for one in told)
    yield _causes(models)


def _name(model: XlaModel) -> str:
    return model.target.rpartition(":")[2]


def _rows(head: str, marks: str, rows: list[str]) -> str:
    return "\n".join([head, marks, *rows])


def _counts(models: list[XlaModel]) -> str:
    rows = []
    for model in models:
        by = {one.name: one for one in model.routes}
        cells = [
            _name(model),
            _or_dash(model.n_dynamo_graphs),
            _or_dash(model.n_breaks),
            str(len([one for one in model.fx if not one.step])) if model.fx else "-",
        ]
        for name in ("openxla", "lazy"):
            one = by[name]
            if not one.steps:
                cells += [one.failure.split(":")[0], "", ""]
                continue
            causes = Counter(graph.cause for graph in one.graphs if graph.extra)
            why = ", ".join(f"{count} {cause}" for cause, count in causes.most_common())
            cells += [str(one.n_compiled), words.number(one.executed_per_step), why or "none"]
        rows.append(f"| {' | '.join(cells)} |")
    return _rows(
        "| model | dynamo graphs | breaks | FX graphs | HLO compiled, openxla | per step | extra"
        " | HLO compiled, lazy | per step | extra |",
        "|:--|--:|--:|--:|--:|--:|:--|--:|--:|:--|",
        rows,
    )


def _or_dash(value: int | None) -> str:
    return "-" if value is None else str(value)


def _times(models: list[XlaModel]) -> str:
    rows = []
    for model in models:
        by = {one.name: one for one in model.routes}
        cells = [_name(model)]
        for at in ("first_ms", "steady_ms", "queued_ms"):
            for name in ("openxla", "lazy", "eager"):
                times = by[name].times
                value = getattr(times, at) if times else None
                if (at, name) != ("queued_ms", "eager"):
                    cells.append("-" if value is None else f"{value:.3g}")
        for name in ("openxla", "lazy"):
            one = by[name].answers
            cells.append(one.verdict if one else "-")
        rows.append(f"| {' | '.join(cells)} |")
    return _rows(
        "| ms | first, openxla | lazy | eager | steady, openxla | lazy | eager | queued, openxla"
        " | lazy | answers, openxla | lazy |",
        "|:--|--:|--:|--:|--:|--:|--:|--:|--:|:--|:--|",
        rows,
    )


def _causes(models: list[XlaModel]) -> str:
    counts: dict[str, dict[tuple[str, bool], int]] = {}
    for model in models:
        for route in model.routes:
            for graph in route.graphs:
                row = counts.setdefault(graph.cause, {})
                key = (route.name, model.train)
                row[key] = row.get(key, 0) + 1
    keys = [(name, train) for name in ("openxla", "lazy") for train in (False, True)]
    rows = [
        f"| {cause} | " + " | ".join(str(row.get(key, 0)) for key in keys) + " |"
        for cause, row in sorted(counts.items(), key=lambda one: -sum(one[1].values()))
    ]
    return _rows(
        "| HLO graphs compiled, by cause | openxla, inference | openxla, training | lazy, inference | lazy, training |",
        "|:--|--:|--:|--:|--:|",
        rows,
    )


def main() -> None:
    """Measure what is asked for, then write the page."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", nargs="*", help="names of models")
    parser.add_argument("--mode", choices=MODES)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--page", action="store_true", help="measure nothing")
    parser.add_argument("--missing", action="store_true", help="measure what is not there")
    given = parser.parse_args()
    for name in [] if given.page else given.only or names():
        for mode in MODES:
            there = (KEPT / f"{name}.{mode}.json").exists()
            if (given.mode or mode) == mode and not (given.missing and there):
                measure(name, mode, given.rounds)
    write_page()


if __name__ == "__main__":
    main()
