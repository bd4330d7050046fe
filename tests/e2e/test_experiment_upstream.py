"""The experiment on a remote engine: the command, a gateway of its own, the fake engine as another process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path


def test_the_command_runs_on_an_upstream(tmp_path: Path) -> None:
    fake = subprocess.Popen(
        [sys.executable, "-m", "engine.fake", "--port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert fake.stdout is not None
        url = next(word for word in fake.stdout.readline().split() if word.startswith("http")).rstrip("/.,")
        upstream = url if url.endswith("/v1") else f"{url}/v1"
        command = [sys.executable, "-m", "app.cli", "experiment", "--upstream", upstream, "--json", "-"]
        environment = os.environ | {"STILLFRAME_DATA_DIR": str(tmp_path)}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    finally:
        fake.kill()
        fake.communicate()
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["rows"]
    assert len(rows) == 16
    assert {row["verdict"] for row in rows} == {"ok (encoder figures are unreported)"}
