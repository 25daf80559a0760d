"""What agents read of fixes on trial."""

from __future__ import annotations

import msgspec
from measure.fix.test_report import PATCH, result

from torchtriage.agents import records
from torchtriage.agents.answers import UNTRUSTED


def test_the_patch_is_put_together_from_its_records():
    found = records.fix(msgspec.to_builtins(result()))
    lines = [line for record in found if record["kind"] == "patch" for line in record[UNTRUSTED]["lines"]]
    assert "\n".join(lines) + "\n" == PATCH


def test_each_attempt_says_what_became_of_it():
    head, *rest = records.fix(msgspec.to_builtins(result()))
    assert head["proved"] is False
    attempts = [record for record in rest if record["kind"] == "attempt"]
    assert [record["outcome"] for record in attempts] == ["results differ", "dropped", "not needed"]
    assert attempts[0]["id"] == "A1-SYN001"
    assert attempts[1][UNTRUSTED]["reason"] == "the model's diff is none"
