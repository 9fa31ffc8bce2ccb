"""The alert rules fire when they should, judged by Prometheus itself: `promtool`, which comes with it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.browser.test_grafana import HOME, alerts

PLACES = (os.environ["PATH"], str(Path(sys.executable).parent))  # scripts/system_packages brings the second
PROMTOOL = shutil.which("promtool", path=os.pathsep.join(PLACES))


@pytest.mark.browser
@pytest.mark.skipif(PROMTOOL is None, reason="promtool is not installed")
def test_each_alert_fires_on_its_trouble_and_none_in_a_calm_hour() -> None:
    """A rule whose threshold the metrics never reach wakes nobody."""
    command = [str(PROMTOOL), "test", "rules", "alerts_test.yml"]
    told = subprocess.run(command, cwd=HOME, capture_output=True, text=True, check=False)
    assert told.returncode == 0, told.stdout + told.stderr


def test_every_alert_has_a_trouble_of_its_own() -> None:
    """The file that promtool runs names each alert twice: silent in the calm hour, firing elsewhere."""
    troubles = (HOME / "alerts_test.yml").read_text(encoding="utf-8")
    for rule in alerts():
        assert f"alertname: {rule['alert']} " in troubles
        assert f'alertname="{rule["alert"]}"' in troubles
