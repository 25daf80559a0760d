"""With the native library and without it: the same report, byte for byte."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import torchtriage as tt
from torchtriage.core.engine import FILE, READER_VARIABLE

SHARED = Path(os.environ.get("TORCHTRIAGE_DATA", "../shared/data")) / "traces"
ALL = sorted(path for path in SHARED.rglob("*.json*") if path.is_file())
# every fourth always: all of them take minutes
SOME = ALL[::4]


@pytest.mark.data
@pytest.mark.skipif(not FILE.exists(), reason="the native library is not built (make native)")
@pytest.mark.parametrize(
    "path",
    [pytest.param(path, marks=[] if path in SOME else [pytest.mark.slow]) for path in ALL],
    ids=lambda path: f"{path.parent.name}/{path.name.partition('.json')[0]}",
)
def test_reports_are_the_same(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = []
    for reader in ("python", "native"):
        monkeypatch.setenv(READER_VARIABLE, reader)
        try:
            told.append(tt.analyze(path).to_json())
        except tt.TriageError as error:
            told.append(str(error))
    assert told[0] == told[1]
