"""The pages say what the code says."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import click
from click.testing import CliRunner
from docs import build

import torchtriage
from torchtriage.api.catalogue import lookup, pages
from torchtriage.cli.main import COMMANDS, cli
from torchtriage.core import finding
from torchtriage.core.trace.schema import COLUMNS
from torchtriage.diagnose.patterns import catalogue
from torchtriage.diagnose.verdict import doctor, left_out_steps, recorder_advice

DOCS = Path(build.__file__).parent
PAGES = build.pages()


def test_generated_pages_are_current() -> None:
    stale = [name for name, text in PAGES.items() if (DOCS / name).read_text(encoding="utf-8") != text]
    assert stale == [], "run: make docs"


def test_no_page_is_left_of_a_pattern_that_is_gone() -> None:
    found = {f"patterns/{path.name}" for path in (DOCS / "patterns").glob("*")}
    assert found == {name for name in PAGES if name.startswith("patterns/")}


def test_every_pattern_is_in_the_index_and_has_a_page() -> None:
    index = PAGES["patterns/index.md"]
    for entry in catalogue():
        code, name = entry.pattern.code, entry.pattern.name
        assert f"[{name}]({code}.md) | {code} |" in index
        page = PAGES[f"patterns/{code}.md"]
        assert f"# {code} {name}" in page
        assert entry.fix.link in page


def codes_in_source() -> dict[str, set[str]]:
    """Return every text of the package that is a code and nothing else, and the files it is in."""
    found: dict[str, set[str]] = {}
    for path in Path(torchtriage.__file__).parent.rglob("*.py"):
        source = path.read_text(encoding="utf-8")
        # three modules in four hold none, and parsing is what takes the time
        nodes = ast.walk(ast.parse(source)) if re.search(r"[\"'][A-Z]{3}\d{3}[\"']", source) else ()
        for node in nodes:
            text = getattr(node, "value", None) if isinstance(node, ast.Constant) else None
            if isinstance(text, str) and re.fullmatch(r"[A-Z]{3}\d{3}", text):
                found.setdefault(text, set()).add(path.name)
    return found


def test_every_code_used_anywhere_has_a_page_and_every_page_a_code() -> None:
    used, known = codes_in_source(), {page.code for page in pages()}
    assert len(used) > 50
    assert {code: files for code, files in used.items() if code not in known} == {}
    assert known <= used.keys()


def test_every_page_has_its_sections_and_is_explained() -> None:
    for page in pages():
        assert [title for title in page.titles if not page.section(title)] == [], page.heading
        assert page in lookup(page.code)
        assert page in lookup(f" {page.name.upper()} "), page.heading
        explained = CliRunner().invoke(cli, ["explain", page.code]).stdout
        assert f"{page.heading}\n" in explained
        assert page.fix.code.splitlines()[0] in explained if page.fix.code else True, page.heading
        text = " ".join(PAGES[f"patterns/{page.code}.md"].split())
        for title in page.titles:
            assert f"**{title}**: {page.section(title).replace('``', '`')}" in text, page.heading
        assert f"[{page.name}]({page.code}.md) | {page.code} |" in PAGES["patterns/index.md"]


def test_one_code_is_one_thing_in_all_its_parts() -> None:
    seen: dict[str, set[tuple[str, str]]] = {}
    for page in pages():
        seen.setdefault(page.code, set()).add((page.name, page.family))
    assert {code: names for code, names in seen.items() if len(names) > 1} == {}
    assert len({page.name for page in pages()}) == len(seen)
    assert len({page.heading for page in pages()}) == len(pages())


def test_every_command_and_option_is_in_the_page_of_the_command_line() -> None:
    page = PAGES["cli.md"]
    context = click.Context(cli)
    for name in COMMANDS:
        assert f"## torchtriage {name}\n" in page
        command = cli.get_command(context, name)
        assert command is not None
        for param in command.params:
            assert all(opt in page for opt in param.opts if isinstance(param, click.Option))


def test_every_column_is_documented() -> None:
    for column in COLUMNS:
        assert f"| `{column.name}` | `{column.dtype}` |" in PAGES["schema.md"]


def note_codes() -> set[str]:
    """Return every first argument of a ``Note`` in the doctor's sources."""
    return {
        part.value
        for module in (doctor, left_out_steps, recorder_advice)
        for node in ast.walk(ast.parse(Path(module.__file__).read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Note"
        for part in ast.walk(node.args[0])
        if isinstance(part, ast.Constant) and isinstance(part.value, str)
    }


def test_every_note_of_the_doctor_is_documented_and_no_other() -> None:
    text = (DOCS / "doctor.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"^\| `([a-z-]+)` \|", text, re.MULTILINE))
    assert listed == note_codes()


def test_every_word_of_a_result_is_defined() -> None:
    text = (DOCS / "definitions.md").read_text(encoding="utf-8")
    fields = [*vars(finding.TimeClasses)["__annotations__"], *vars(finding.Cost)["__annotations__"]]
    for field in fields:
        assert f"`{field}`" in text, field
    for word in ("measured", "modelled", "bounded", "certain", "likely", "hint", "high", "medium"):
        assert f"`{word}`" in text, word


def test_every_linked_file_exists() -> None:
    dead = [
        f"{page.name}: {link}"
        for page in DOCS.rglob("*.md")
        for link in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text(encoding="utf-8"))
        if not (page.parent / link).exists()
    ]
    assert dead == []
