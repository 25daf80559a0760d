"""The configurations we offer are read by the programs they are for."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
pytestmark = pytest.mark.prometheus


def promtool(*args):
    done = subprocess.run(["promtool", "check", *args], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_configuration_of_prometheus():
    promtool("config", "--syntax-only", str(ROOT / "examples/monitoring/prometheus.yaml"))


def test_the_rules_for_vllm(tmp_path):
    (rules,) = re.findall(r"```yaml\n(groups:.*?)```", (ROOT / "docs/ecosystem.md").read_text(), re.S)
    (tmp_path / "rules.yml").write_text(rules)
    promtool("rules", str(tmp_path / "rules.yml"))
