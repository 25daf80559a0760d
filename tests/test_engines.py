"""With the native library and without it: the same report, byte for byte."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import torchtriage as tt
from torchtriage.trace.engine import FILE, READER_VARIABLE

SHARED = Path(os.environ.get("TORCHTRIAGE_DATA", "../shared/data")) / "traces"
# every fourth: all of them were compared once, and take a minute
SOME = sorted(SHARED.glob("*/*.json.gz"))[::4]


@pytest.mark.data
@pytest.mark.skipif(not FILE.exists(), reason="the native library is not built (make native)")
@pytest.mark.parametrize("path", SOME, ids=lambda path: path.name.partition(".")[0])
def test_reports_are_the_same(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = []
    for reader in ("python", "native"):
        monkeypatch.setenv(READER_VARIABLE, reader)
        try:
            told.append(tt.analyze(path).to_json())
        except tt.TriageError as error:
            told.append(str(error))
    assert told[0] == told[1]
