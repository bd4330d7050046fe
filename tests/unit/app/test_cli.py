"""The command line: what it prints, and with which status it ends."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import types
import urllib.request
from pathlib import Path

import pytest

from app.cli import main
from app.server import bind, check_disk
from app.settings import load
from context.errors import ConfigError

COMMANDS = ("serve", "demo", "experiment", "replay", "bench")
UPSTREAM = ("--upstream", "http://127.0.0.1:9/v1")


def _environment(folder: Path, **variables: str) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith("STILLFRAME_")}
    return kept | {"XDG_DATA_HOME": str(folder), "PYTHONWARNINGS": "default"} | variables


def _run(folder: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "app.cli", *arguments],
        env=_environment(folder, **variables),
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_help_and_version(tmp_path: Path) -> None:
    top = _run(tmp_path, "--help")
    assert top.returncode == 0
    assert all(command in top.stdout for command in COMMANDS)
    for command in COMMANDS:
        shown = _run(tmp_path, command, "--help")
        assert (shown.returncode, shown.stderr) == (0, "")
        assert shown.stdout.startswith(f"usage: stillframe {command}")
    version = _run(tmp_path, "--version")
    assert (version.returncode, version.stdout.split()[0]) == (0, "stillframe")


def test_a_command_in_another_program_does_not_end_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """However loud the engine's libraries are when that program ends."""
    monkeypatch.setitem(sys.modules, "vllm", types.ModuleType("vllm"))
    with pytest.raises(SystemExit) as ended:
        main(["policy", "list"])
    assert ended.value.code == 0
    assert "stable" in capsys.readouterr().out


def test_serve_help_names_every_flag(tmp_path: Path) -> None:
    shown = _run(tmp_path, "serve", "--help").stdout
    for flag in ("--host", "--port", "--config", "--model", "--upstream", "--workers", "--policy"):
        assert flag in shown


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ((), "COMMAND"),
        (("nonsense",), "nonsense"),
        (("serve", "--nonsense"), "--nonsense"),
        (("serve", "--port", "x"), "--port"),
        (("serve", "--port", "70000"), "flag --port: port: "),
        (("serve", "--workers", "2"), "flag --workers: workers: "),
        (("serve", "--policy", "other"), "flag --policy: policy: "),
        (("serve", "--policy", "/nowhere/x.yaml", *UPSTREAM), "/nowhere/x.yaml: there is no such file"),
        (("policy",), "ACTION"),
        (("policy", "check"), "FILE|NAME"),
        (("policy", "check", "other"), "there is no policy 'other'; take one of observe, stable, sliding"),
        (("policy", "check", "stable", "--steps", "0"), "flag: --steps: takes a number from 1 to 500"),
        (("policy", "list", "--json", "/nowhere/x.json"), "flag: /nowhere/x.json: cannot be written"),
        (("serve", "--config", "/nowhere/x.yaml"), "/nowhere/x.yaml: there is no such file"),
        (("serve", "--upstream", "nonsense"), "flag --upstream: upstream: "),
        (("serve", "--host", "999.1.1.1", *UPSTREAM), "choose others with --host and --port"),
        (("serve", "--host", "192.0.2.1", *UPSTREAM), "is not an address of this machine"),
        (("experiment", "--groups", "XYZ"), "--groups"),
        (("demo", "--url", "ftp://127.0.0.1"), "flag: --url: is not an http or https URL"),
        (("demo", "--url", "http://127.0.0.1:99999"), "flag: --url: is not an http or https URL"),
        (("experiment", "--url", "http://"), "flag: --url: is not an http or https URL"),
        (("demo", "--seed", "-1"), "flag: --seed: takes a number from 0 up"),
        (("demo", "--save", "/dev/null/pictures"), "flag --save: /dev/null/pictures: is not a folder"),
        (("demo", "--json", "/nowhere/rows.json"), "flag: /nowhere/rows.json: cannot be written"),
    ],
)
def test_wrong_use_ends_with_2_and_one_clear_line(tmp_path: Path, arguments: tuple[str, ...], told: str) -> None:
    done = _run(tmp_path, *arguments)
    assert done.returncode == 2
    assert told in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_a_wrong_variable_names_itself(tmp_path: Path) -> None:
    done = _run(tmp_path, "serve", STILLFRAME_PORT="x")
    assert done.returncode == 2
    assert done.stderr.startswith("stillframe: environment variable STILLFRAME_PORT: port: ")


def test_port_taken(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        done = _run(tmp_path, "serve", "--port", str(port), *UPSTREAM)
    assert done.returncode == 2
    assert f"port {port} is taken" in done.stderr
    assert "--port" in done.stderr


def test_data_dir_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = _run(tmp_path, "serve", "--port", "0", *UPSTREAM, STILLFRAME_DATA_DIR=str(tmp_path / "file" / "below"))
    assert done.returncode == 2
    assert "cannot write in" in done.stderr
    assert "data_dir" in done.stderr


@pytest.mark.parametrize("name", ["missing/folder", "./missing", "/missing"])
@pytest.mark.vllm
def test_missing_model(tmp_path: Path, name: str) -> None:
    done = _run(tmp_path, "serve", "--port", "0", "--model", name)
    assert done.returncode == 2
    assert done.stderr.count("settings: model: ") == 1
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_setting_that_stops_the_start(tmp_path: Path, workers: str) -> None:
    """Found wrong only where it is used, after the port is open."""
    store = "nonsense://x"
    done = _run(tmp_path, "serve", "--port", "0", "--workers", workers, *UPSTREAM, STILLFRAME_IMAGES__STORE_URL=store)
    assert done.returncode == 2
    assert "settings: images.store_url: " in done.stderr
    assert "Traceback" not in done.stderr


def test_serve_until_it_is_told_to_stop(tmp_path: Path) -> None:
    """An upstream that is not there: the gateway lives, says that it is not ready, and stops cleanly."""
    with subprocess.Popen(
        [sys.executable, "-m", "app.cli", "serve", "--port", "0", *UPSTREAM],
        env=_environment(tmp_path, PYTHONUNBUFFERED="1"),
        cwd=Path(__file__).parents[3],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as server:
        assert server.stdout is not None
        assert server.stderr is not None
        line = server.stdout.readline()
        assert line.startswith("Stillframe listens on http://127.0.0.1:")
        url = line.split()[3].removesuffix("/v1")
        deadline = time.monotonic() + 60
        while True:
            try:
                with urllib.request.urlopen(f"{url}/health/live", timeout=5) as answer:  # noqa: S310
                    assert answer.status == 200
                break
            except OSError:
                assert time.monotonic() < deadline
        assert (tmp_path / "stillframe" / "admin-token").stat().st_mode & 0o077 == 0
        server.send_signal(signal.SIGTERM)
        assert server.wait(30) == 0
        assert "Traceback" not in server.stderr.read()


def test_bind_says_what_to_do() -> None:
    for host, port, key in (
        ("999.1.1.1", 0, "host"),
        ("x" * 300, 0, "host"),
        ("a..b", 0, "host"),
        ("192.0.2.1", 0, "host"),
    ):
        with pytest.raises(ConfigError) as caught:
            bind(host, port)
        assert caught.value.key == key
        assert "--host" in caught.value.reason


@pytest.mark.parametrize("name", ["a\0b", "x" * 5000])
def test_names_that_no_folder_can_have(name: str) -> None:
    settings = load(environment={}, flags={"data_dir": f"/tmp/{name}"})
    with pytest.raises(ConfigError, match="cannot write in"):
        check_disk(settings)
