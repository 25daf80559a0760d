"""The result of ``torchtriage fix`` in every format."""

from __future__ import annotations

import json
import re
from dataclasses import asdict

from torchtriage.api.fixes import FixReport
from torchtriage.core.finding import Note
from torchtriage.measure.fix.result import FIX_SCHEMA, Attempt, FixResult, SideEffects, Unedited
from torchtriage.report.formats import decode

PATCH = "--- a/<b>.py\n+++ b/<b>.py\n@@ -1 +1 @@\n-x = 1\n+x = '<script>alert(1)</script>'\n"


def result() -> FixResult:
    attempts = (
        Attempt("SYN001", "host-sync-scalar", "a.py", 3, None, "model", "keep the sum", "", PATCH, "results differ"),
        Attempt("DAT018", "loader", "", 0, None, "model", "no change", "", "", "dropped", "the model's diff is none"),
        Attempt("DAT018", "loader", "a.py", 4, None, "lint", "other", "", "", "not needed"),
    )
    return FixResult(
        FIX_SCHEMA,
        "1.0",
        ("No patch: 1 change tried, none is proven.",),
        "train.py",
        "project",
        attempts,
        (Unedited("HST020", "python-bound", "a.py", 9, None),),
        PATCH,
        None,
        SideEffects(written=("log.txt",), connections=("('127.0.0.1', 9)",)),
        (),
        (Note("outside", "warn", "files stay"),),
    )


def test_the_document_is_read_back_the_same():
    data = FixReport.of(result()).to_json()
    assert json.loads(data)["attempts"][1]["outcome"] == "dropped"
    assert asdict(decode(data)) == asdict(result())


def test_text_markdown_and_page_say_what_became_of_each_change_and_run_nothing():
    report = FixReport.of(result())
    for text in (str(report), report.to_markdown(), report.to_html()):
        assert "results differ" in text
        # the change may be one of its line, not of what the code says
        assert re.search(r"keep the sum.*, for SYN001", text)
        assert "the model's diff is none" in text.replace("&#x27;", "'").replace("&#39;", "'")
        assert "1 other change for the same findings: not needed" in text
        assert "HST020" in text
    assert "<script>alert(1)" not in report.to_html()
