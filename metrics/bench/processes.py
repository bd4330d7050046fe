"""The processes of a benchmark: started on free ports, watched through /proc, and always ended."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import tempfile
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from metrics.bench.errors import BenchError
from metrics.bench.load import fetch

_LOG_LINES = 15


@dataclass(frozen=True, slots=True)
class Server:
    """A running server: its process id and its port on this machine."""

    name: str
    pid: int
    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def peak_memory_bytes(self) -> int:
        """The most memory that the process has had resident so far."""
        return _status_kib(self.pid, "VmHWM") * 1024

    def memory_bytes(self) -> int:
        """What the process has resident now."""
        return _status_kib(self.pid, "VmRSS") * 1024

    def open_files(self) -> int:
        """File descriptors of the process, sockets among them."""
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def cpu_seconds(self) -> float:
        """Processor time that the process has used so far."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _status_kib(pid: int, key: str) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == key:
            return int(value.split()[0])
    raise BenchError(f"This system does not report {key} of a process.")


def free_port() -> int:
    """A port that nothing listens on right now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


@asynccontextmanager
async def serving(
    name: str,
    command: Sequence[str],
    *,
    ready_path: str,
    timeout_seconds: float,
    environment: Mapping[str, str] | None = None,
) -> AsyncGenerator[Server]:
    """Run a server until the context is left. `{port}` in the command becomes its port.

    Raises:
        BenchError: it ended, or did not answer `ready_path` with 200 in time; its last words are in the message.
    """
    port = free_port()
    words = [part.replace("{port}", str(port)) for part in command]
    with tempfile.TemporaryFile() as log:
        # A group of its own: what it starts ends with it, and an interrupt at the terminal reaches us alone.
        process = await asyncio.create_subprocess_exec(
            *words, stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            env={**os.environ, **(environment or {})},
        )  # fmt: skip
        try:
            await _ready(name, process, port, ready_path, timeout_seconds, log)
            yield Server(name, process.pid, port)
            if process.returncode is not None:
                raise BenchError(f"The {name} ended while it was measured:\n{_last_words(log)}")
        finally:
            await _end(process)


async def _ready(
    name: str, process: asyncio.subprocess.Process, port: int, path: str, timeout_seconds: float, log: IO[bytes]
) -> None:
    try:
        async with asyncio.timeout(timeout_seconds):
            while not await _answers(port, path):
                if process.returncode is not None:
                    raise BenchError(f"The {name} ended before it was ready:\n{_last_words(log)}")
                await asyncio.sleep(0.05)
    except TimeoutError as error:
        words = _last_words(log)
        raise BenchError(f"The {name} was not ready within {timeout_seconds:g} seconds:\n{words}") from error


async def _answers(port: int, path: str) -> bool:
    try:
        return (await fetch(port, path)).status == 200
    except (OSError, BenchError):
        return False


def _last_words(log: IO[bytes]) -> str:
    log.seek(0)
    return "\n".join(log.read().decode("utf-8", "replace").splitlines()[-_LOG_LINES:])


async def _end(process: asyncio.subprocess.Process) -> None:
    for sign, seconds in ((signal.SIGTERM, 10.0), (signal.SIGKILL, 5.0)):
        try:
            os.killpg(process.pid, sign)
        except ProcessLookupError:
            break
        try:
            await asyncio.wait_for(process.wait(), seconds)
        except TimeoutError:
            continue
    await process.wait()
