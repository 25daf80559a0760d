"""What edits make of code: a file of ``corpus`` for each edit, a case for each thing that it knows or leaves alone.

``=== what it shows | code of the finding | part of its line``, and the code below: ``-`` marks what goes, ``+`` what
comes. Code without such lines stays as it is. Nothing more is proposed once a change is made, except for MORE.
"""

from pathlib import Path

import pytest
from tests.measure.fix.proposing import proposed, sides

CASES = [
    pytest.param(path.stem, *head.split(" | ", 2), text, id=f"{path.stem}: {head.partition(' | ')[0]}")
    for path in sorted((Path(__file__).parent / "corpus").glob("*.txt"))
    for head, _, text in (part.partition("\n") for part in path.read_text().split("=== ")[1:])
]

MORE = {
    "the default of an option is changed",
    "a counter of a model becomes a buffer and its input has one dtype",
    "a print behind a flag of a model is switched off",
    "what depends on the fold is kept by fold",
}
"""Where another change is known at the line as well."""


@pytest.mark.parametrize(("edit", "title", "code", "line", "text"), CASES)
def test_case(edit, title, code, line, text):
    before, after = sides(text.rstrip() + "\n")
    found = proposed(before, int(line) if line.isdigit() else line, code, edit)
    assert found[:1] == ([after] if after != before else [])
    if found and line in after and title not in MORE:
        assert not proposed(after, line, code, edit)
