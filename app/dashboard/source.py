"""The records' file, read by a thread of its own so that no question holds up the event loop, and answers that are kept
for as long as nothing changes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Hashable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from pydantic_core import to_json

from context.errors import ConfigError, EngineError
from context.images.memo import Lru, SingleFlight
from metrics.records.queries import Records, open_records

T = TypeVar("T")
_KEPT_BYTES = 4 * 1024 * 1024


class RecordsUnavailable(EngineError):
    """The file of records cannot be read now (503)."""

    status = 503
    code = "records_unavailable"


class Source:
    """Reads the records of one file. Called from one event loop."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._thread = ThreadPoolExecutor(1, "dashboard-read")
        self._records: Records | None = None
        self._file: tuple[int, int] | None = None
        self._flights = SingleFlight()
        self._kept: Lru[Hashable, bytes] = Lru(_KEPT_BYTES, len)

    async def ask(self, question: Callable[[Records], T]) -> T:
        """A question's answer.

        Raises:
            RecordsUnavailable: the file cannot be read now.
        """
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._asked, question)

    async def version(self) -> int:
        """Changes when there are new records: the id of the latest."""
        return await self.ask(lambda records: records.rows("SELECT max(id) FROM records")[0][0] or 0)

    async def kept(self, key: Hashable, make: Callable[[], Coroutine[Any, Any, Any]]) -> bytes:
        """A value as JSON, made once for a key and for all who ask for it.

        Raises:
            StillframeError: what making it raised.
        """
        if (found := self._kept.get(key)) is not None:
            return found

        async def made() -> bytes:
            value = await make()
            body = await asyncio.get_running_loop().run_in_executor(self._thread, to_json, value)
            self._kept.put(key, body)
            return body

        return await self._flights.run(key, made)

    async def close(self) -> None:
        """End it."""
        await self._flights.close()
        with contextlib.suppress(RuntimeError):
            await asyncio.get_running_loop().run_in_executor(self._thread, self._shut)
        self._thread.shutdown(wait=False)

    def _asked(self, question: Callable[[Records], T]) -> T:
        try:
            return question(self._opened())
        except ConfigError as error:
            self._shut()
            raise RecordsUnavailable(
                "The records cannot be read now. They are there with the first chat; otherwise see the gateway's log."
            ) from error

    def _opened(self) -> Records:
        file = _identity(self._path)
        if self._records is not None and file != self._file:
            # The ledger has moved a damaged file away.
            self._shut()
        if self._records is None:
            self._records, self._file = open_records(self._path), file
        return self._records

    def _shut(self) -> None:
        records, self._records = self._records, None
        if records is not None:
            records.close()


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino
