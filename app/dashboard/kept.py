"""What is known of the comparisons, for all processes of a gateway: in memory where it is one, in files of the folder
that its workers share where they are several."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any, cast

from context.images.memo import Lru

_KEPT = 32
_LOOK_EVERY_SECONDS = 0.2
_BY = "process"
UNDER_WAY = frozenset(("waiting", "running"))


class States:
    """The state of each viewer's latest comparison, of the latest viewers.

    Args:
        folder: what all processes of the gateway share; None where there is one process.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._memory: Lru[str, dict[str, Any]] = Lru(_KEPT)
        self._one_runs = asyncio.Lock()

    def get(self, key: str) -> dict[str, Any] | None:
        """The state; None where there is none, or the process that was at it has ended."""
        if self._folder is None:
            return self._memory.get(key)
        try:
            state = cast("dict[str, Any]", json.loads(self._file(self._folder, key).read_bytes()))
        except (OSError, ValueError):
            return None
        by = state.pop(_BY)
        return None if state["state"] in UNDER_WAY and not _is_alive(by) else state

    def put(self, key: str, state: dict[str, Any]) -> None:
        """Keep a state."""
        if self._folder is None:
            self._memory.put(key, state)
            return
        file = self._file(self._folder, key)
        fresh = file.with_suffix(f".{os.getpid()}")
        with contextlib.suppress(OSError):
            fresh.write_text(json.dumps({**state, _BY: os.getpid()}))
            fresh.replace(file)
            for old in sorted(self._folder.glob("whatif-*.json"), key=_age)[_KEPT:]:
                old.unlink(missing_ok=True)

    @asynccontextmanager
    async def alone(self) -> AsyncGenerator[None]:
        """While no other comparison runs, in any process."""
        async with self._one_runs:
            if self._folder is None:
                yield
                return
            with (self._folder / "whatif.lock").open("wb") as lock:
                while not _locked(lock.fileno()):  # noqa: ASYNC110 - nothing tells when another process has ended
                    await asyncio.sleep(_LOOK_EVERY_SECONDS)
                yield

    @staticmethod
    def _file(folder: Path, key: str) -> Path:
        return folder / f"whatif-{sha256(key.encode('utf-8', 'surrogatepass')).hexdigest()[:32]}.json"


def _age(file: Path) -> float:
    try:
        return -file.stat().st_mtime
    except OSError:
        return 0.0


def _locked(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
