"""What is promised is there, what is used is promised, and the examples run."""

from __future__ import annotations

import ast
import gzip
import inspect
import json
import pickle
import re
import shlex
import shutil
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest
from click.testing import CliRunner
from compile.logs.log_builder import LogBuilder
from measure.gate.repositories import git
from memory.recorder import training_step

import torchtriage as tt
from torchtriage.api import traces
from torchtriage.cli.main import cli
from torchtriage.core import errors
from torchtriage.diagnose.patterns import PatternEntry, catalogue
from torchtriage.operate import monitor

SOURCE = Path(tt.__file__).parent
ROOT = SOURCE.parents[1]
README = "".join((ROOT / page).read_text(encoding="utf-8") for page in ("README.md", "docs/analyze.md"))


def _name(path: Path) -> str:
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


# run by an interpreter as it starts, or beside a recording as its script: no modules of ours
STARTS = ("__main__.py", "sitecustomize.py")
MODULES = sorted(
    _name(path) for path in SOURCE.rglob("*.py") if path.name not in STARTS and path.parent != SOURCE / "cli" / "sample"
)


def _text(name: str) -> str:
    path = SOURCE.parent / name.replace(".", "/")
    source = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return source.read_text(encoding="utf-8")


@cache
def tree(name: str) -> ast.Module:
    return ast.parse(_text(name))


# parsing all modules takes seconds
FROM = r"^ *from (torchtriage[.\w]*) import (\([^)]*\)|.*)"


def _imports_torch(name: str) -> bool:
    # every process that collects tests asks for every module: few are parsed
    return re.search(r"^import .*\btorch\b", _text(name), re.MULTILINE) is not None and any(
        isinstance(node, ast.Import) and any(one.name == "torch" for one in node.names) for node in tree(name).body
    )


# they can be read without torch, not imported
NEED_TORCH = {name for name in MODULES if _imports_torch(name)}


def exports(name: str) -> list[str] | None:
    if name not in NEED_TORCH:
        return getattr(import_module(name), "__all__", None)
    for node in tree(name).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return list(ast.literal_eval(node.value))
    return None


every_module = pytest.mark.parametrize(
    "names",
    [
        pytest.param(sorted(set(MODULES) - NEED_TORCH), id="without torch"),
        pytest.param(sorted(NEED_TORCH), id="with torch", marks=pytest.mark.torch),
    ],
)


# -- __all__ -----------------------------------------------------------------------------------


@every_module
def test_all_is_sorted_and_true(names: list[str]) -> None:
    odd = []
    for name in names:
        module = import_module(name)
        promised = getattr(module, "__all__", ())
        # constants first, then classes, then functions, each by name: as ruff sorts them
        ordered = sorted(set(promised), key=lambda item: (not item.isupper(), not item[:1].isupper(), item))
        if list(promised) != ordered:
            odd.append(f"{name} is not sorted, or has a name twice")
        odd += [f"{name}.{item} is not there" for item in promised if not hasattr(module, item)]
    assert odd == []


def test_what_others_import_is_in_all() -> None:
    """A name that another module uses does not begin with an underscore, and is in `__all__` where there is one."""
    odd = []
    for name in MODULES:
        for module, imported in re.findall(FROM, _text(name), re.MULTILINE):
            names = exports(module)
            for alias in re.findall(r"(\w+)(?: as \w+)?", re.sub("#.*", "", imported)):
                if names is not None and f"{module}.{alias}" not in MODULES and alias not in names:
                    odd.append(f"{name} uses {module}.{alias}")
                assert not (alias.startswith("_") and not alias.startswith("__")), name
    assert odd == []


@every_module
def test_every_public_function_and_class_is_described(names: list[str]) -> None:
    undescribed = [
        f"{name}.{item}"
        for name in names
        for item, value in vars(import_module(name)).items()
        if not item.startswith("_") and getattr(value, "__module__", None) == name
        if (inspect.isfunction(value) or inspect.isclass(value)) and not inspect.getdoc(value)
    ]
    assert undescribed == []


# -- the promised names ------------------------------------------------------------------------


def test_promised_names_load_when_used() -> None:
    assert dir(tt) == sorted(tt.__all__)
    assert set(tt.__all__) == {"__version__", *tt._HOMES}
    for name in tt.__all__:
        assert getattr(tt, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = tt.nothing


def test_errors_are_one_tree() -> None:
    public = [var for var in vars(errors).values() if isinstance(var, type) and var.__module__ == errors.__name__]
    assert len(public) > 5
    for one in public:
        assert issubclass(one, tt.TriageError)
        assert f"``{one.__name__}``" in str(errors.__doc__)
    shown = str(tt.UsageError("expected a, found b", where="file", hint="c"))
    assert shown == "file: expected a, found b\n  try: c"


def test_explain_gives_pages() -> None:
    assert tt.explain() == catalogue()
    one = tt.explain("host-sync-scalar")
    assert isinstance(one, PatternEntry)
    assert one is tt.explain("SYN001")
    with pytest.raises(tt.UsageError):
        tt.explain("nothing")


def test_a_report_shows_itself(tmp_path: Path) -> None:
    result = tt.analyze(traces.sample_path())
    assert isinstance(result, tt.Report)
    assert isinstance(result, tt.Result)
    assert result.verdict[0] in " ".join(str(result).split())
    assert result.to_json().startswith(b'{"schema":"torchtriage/1"')
    assert result.to_html().startswith("<!doctype html>")
    assert result.to_markdown()
    # in a notebook the page has a frame, and no part of it is the notebook's own
    cell = result._repr_html_()
    assert cell.startswith("<iframe srcdoc=")
    assert "<script" not in cell


def test_a_trace_is_judged_without_reading_it_again() -> None:
    trace = tt.load(traces.sample_path())
    assert tt.analyze(trace) == tt.analyze(traces.sample_path())


def test_progress_is_told_in_bytes() -> None:
    told: list[tuple[int, int]] = []
    path = traces.sample_path()
    tt.analyze(path, progress=lambda read, size: told.append((read, size)))
    reads = [read for read, _ in told]
    assert reads == sorted(reads)
    assert {size for _, size in told} == {path.stat().st_size}


# -- traces in folders -------------------------------------------------------------------------


def test_folders_are_searched_and_files_taken_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "b" / "c").mkdir(parents=True)
    for name in ("b/2.json", "b/c/1.json.gz", "b/3.zip", "b/notes.txt", "odd.name"):
        (tmp_path / name).touch()
    (tmp_path / "b" / "d.json").mkdir()
    found = traces.find_traces([tmp_path / "b", tmp_path / "odd.name", tmp_path / "b" / "2.json"])
    assert [str(one.relative_to(tmp_path)) for one in found] == ["b/2.json", "b/3.zip", "b/c/1.json.gz", "odd.name"]
    with pytest.raises(tt.TraceFormatError, match="expected traces in this folder"):
        traces.find_traces([tmp_path / "b" / "d.json"])


def test_a_folder_gives_every_format_that_is_read(tmp_path: Path) -> None:
    names = [f"{name}{packed}" for name in ("1_results.db", "a.rpd", "c.sqlite") for packed in ("", ".gz")]
    for name in names:
        (tmp_path / name).touch()
    assert [Path(trace).name for trace in traces.find_traces([tmp_path])] == names
    (tmp_path / "empty").mkdir()
    with pytest.raises(tt.TraceFormatError) as caught:
        traces.find_traces([tmp_path / "empty"])
    assert all(kind in str(caught.value) for kind in (".json", ".zip", ".sqlite", ".xplane.pb", ".rpd", ".db", ".gz"))


@pytest.mark.parametrize("packed", ["", ".gz"])
def test_json_beside_its_xplane_is_no_other_rank(tmp_path: Path, packed: str) -> None:
    for name in ("host.trace.json.gz", "other.trace.json.gz", "perfetto_trace.json.gz"):
        (tmp_path / name).touch()
    assert len(traces.find_traces([tmp_path])) == 3
    (tmp_path / f"host.xplane.pb{packed}").touch()
    found = [Path(trace).name for trace in traces.find_traces([tmp_path])]
    assert found == [f"host.xplane.pb{packed}", "other.trace.json.gz"]
    named = tmp_path / "host.trace.json.gz"
    assert traces.find_traces([named]) == [named]


# -- the examples of the README and of the page on analysing ----------------------------------------


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in a folder with the files that the README's examples name."""
    (tmp_path / "runs" / "ranks").mkdir(parents=True)
    for name in ("trace.json.gz", "t.json", "before.json", "after.json", "runs/ranks/0.json.gz"):
        shutil.copy(traces.sample_path(), tmp_path / name)
    CliRunner().invoke(cli, [str(traces.sample_path()), "--json", "-o", str(tmp_path / "result.json")])
    trace = json.loads(gzip.decompress(traces.sample_path().read_bytes()))
    last = max((one for one in trace["traceEvents"] if "ts" in one), key=lambda one: one["ts"])
    args = {"Device Type": 0, "Device Id": -1, "Addr": 4096, "Bytes": 512, "Total Allocated": 512}
    memory = {"ph": "i", "s": "t", "name": "[memory]", "cat": "cpu_instant_event", "args": args}
    trace["traceEvents"].append({**{key: last[key] for key in ("ts", "pid", "tid")}, **memory})
    # known by their content, not by their names
    for name in ("trace.json.gz", "report.sqlite", "host.xplane.pb", "4242_results.json"):
        (tmp_path / name).write_bytes(gzip.compress(json.dumps(trace).encode()))
    (tmp_path / "snapshot.pickle").write_bytes(pickle.dumps(training_step().dump(), 4))
    (tmp_path / "src").mkdir()
    for name in ("train.py", "train_fixed.py", "src/train.py"):
        (tmp_path / name).write_text("import sys\nprint(len(sys.argv))\n", encoding="utf-8")
    (tmp_path / "bench.py").write_text("print(sum(range(1_000)))\n", encoding="utf-8")
    (tmp_path / "logs").mkdir()
    LogBuilder().compiled("0/0", "forward", 3).write(tmp_path / "logs" / "a.log")
    for words in (["init", "-q", "-b", "main"], ["add", "bench.py"], ["commit", "-q", "-m", "one"]):
        git(tmp_path, *words)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_python_examples_run(bench: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    ours = [block for block in blocks if "torchtriage" in block]
    assert ours
    with monitor.Monitor() as observed:
        monkeypatch.setattr(monitor, "_default", observed)
        for block in ours:
            # a port that may be taken here
            exec(compile(block.replace("port=9464", "port=0"), "README.md", "exec"), {})
    assert "DAT018" in capsys.readouterr().out


def test_command_examples_run(bench: Path) -> None:
    lines = re.findall(r"^\$ (.*?torchtriage .*?)(?:\s{2,}#.*| # .*)?$", README, re.MULTILINE)
    assert len(lines) > 8
    for line in lines:
        command = line.rpartition("|")[2].replace('eval "$(', "").replace(')"', "")
        args = shlex.split(command)[1:]
        stdin = (bench / "t.json").read_bytes() if "|" in line else None
        result = CliRunner().invoke(cli, args, input=stdin)
        expected = {0}
        if "--fail-on" in args:
            expected = {1}
        elif args[:2] == ["gate", "check"]:
            expected = {0, 1, 2}  # two equal programs, measured while other tests run
        elif args[0] == "fix":
            expected = {2}  # without torch nothing is recorded
            assert "torch" in result.output
        elif args[0] == "verify":
            expected = {0, 1, 3, 5}  # so are these
        elif args[0] == "attach":
            expected = {2}
            assert "PID: expected a URL" in result.output
        elif args[0] == "bench":
            expected = {2}
            assert "models.py" in result.output
        assert result.exit_code in expected, (line, result.output)
