"""Recorded turns under other policies: asked for by the page, made in a process of its own, kept until it is asked for
anew. The policies are those that the gateway has loaded, whatever has become of their files.

The child (`python -m app.dashboard.whatif`) gets its job as a line of JSON and writes lines: `{"done", "of", "policy"}`
while it works, then `{"result"}` or `{"error"}`. It steps back behind everything else on the machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from app.dashboard.kept import UNDER_WAY, States
from app.settings import Settings
from context.errors import StillframeError, place_of
from context.policies.choice import LoadedPolicy
from engine.base import EngineInfo

_NICENESS = 15
_TIMEOUT_SECONDS = 600.0
_LINE_BYTES = 8 * 1024 * 1024
_FAILED = "The replay failed; see the gateway's log for its cause."


class Comparisons:
    """The latest comparison of each viewer; one is made at a time. Called from one event loop.

    Args:
        settings, ledger: the gateway's, and its file.
        folder: what the gateway's processes share, where they are several.
    """

    def __init__(self, settings: Settings, ledger: Path, folder: Path | None = None) -> None:
        self._settings, self._ledger = settings, ledger
        self._states = States(folder)
        self._tasks: set[asyncio.Task[None]] = set()

    def state(self, tenant: str | None) -> dict[str, Any]:
        """What is known of a viewer's comparison: `state` is idle, waiting, running, done or failed."""
        return self._states.get(_key(tenant)) or {"state": "idle"}

    def start(self, tenant: str | None, engine: EngineInfo, policies: Sequence[LoadedPolicy]) -> dict[str, Any]:
        """Begin one under these policies and the presets, unless one of this viewer's is under way."""
        state = self.state(tenant)
        if state["state"] not in UNDER_WAY:
            job = {
                "settings": self._settings.model_dump_json(),
                "ledger": str(self._ledger),
                "tenant": tenant,
                "kind": engine.kind,
                "model": engine.models[0] if engine.models else "",
                "limits": [engine.max_images_per_prompt, engine.max_model_tokens],
                "policies": [one.written() for one in policies],
            }
            self._put(tenant, {"state": "waiting", "done": 0, "of": 0})
            task = asyncio.create_task(self._run(tenant, job), name="stillframe-whatif")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return self.state(tenant)

    async def close(self) -> None:
        """Stop what runs."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _put(self, tenant: str | None, state: dict[str, Any]) -> None:
        self._states.put(_key(tenant), state)

    async def _run(self, tenant: str | None, job: dict[str, Any]) -> None:
        async with self._states.alone():
            began = time.time()
            try:
                async with asyncio.timeout(_TIMEOUT_SECONDS):
                    last = await self._child(tenant, job)
            except (TimeoutError, OSError, ValueError):
                last = {}
            if "result" in last:
                took = {"made_seconds": time.time(), "took_seconds": time.time() - began}
                self._put(tenant, {"state": "done", **took, "result": last["result"]})
            else:
                self._put(tenant, {"state": "failed", "message": last.get("error", _FAILED)})

    async def _child(self, tenant: str | None, job: dict[str, Any]) -> dict[str, Any]:
        """The last line of a child's."""
        child = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "app.dashboard.whatif",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=_LINE_BYTES,
        )
        assert child.stdin is not None
        assert child.stdout is not None
        last: dict[str, Any] = {}
        try:
            # By a pipe: settings hold secrets, and a command line is for all to see.
            child.stdin.write(json.dumps(job).encode() + b"\n")
            await child.stdin.drain()
            child.stdin.close()
            async for line in child.stdout:
                last = json.loads(line)
                if "done" in last:
                    self._put(tenant, {"state": "running", **last})
            await child.wait()
        finally:
            if child.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    child.kill()
                await child.wait()
        return last


def _key(tenant: str | None) -> str:
    return "" if tenant is None else f"={tenant}"


def main() -> None:
    """The child."""
    from app import estimates
    from context.policies.base import Limits
    from context.policies.choice import load_policy, read_policy
    from context.policies.document import PRESETS
    from context.tenancy import Tenancy, load_secret
    from metrics.dashboard.whatif import compare

    with contextlib.suppress(OSError, AttributeError):
        os.nice(_NICENESS)
    job = cast("dict[str, Any]", json.loads(sys.stdin.readline()))
    settings = Settings.model_validate_json(job["settings"])
    told = time.monotonic()

    def progress(done: int, of: int, policy: str) -> None:
        nonlocal told
        if time.monotonic() - told > 0.2 or done == of:
            told = time.monotonic()
            _say({"done": done, "of": of, "policy": policy})

    try:
        policies = {one.name: one for one in map(read_policy, job["policies"])}
        policies = {**{name: load_policy(name) for name in PRESETS}, **policies}
        tenancy = Tenancy(load_secret(settings.data_path))
        made = asyncio.run(
            compare(
                Path(job["ledger"]),
                list(policies.values()),
                estimates.load(settings, job["kind"]).of(job["model"]).message_tokens,
                key_of=lambda tenant: tenancy.named(tenant).key,
                tenant=job["tenant"],
                limits=Limits(*job["limits"]),
                progress=progress,
            )
        )
        _say({"result": made})
    except StillframeError as error:
        print(place_of(error), file=sys.stderr)
        _say({"error": "The recorded turns cannot be read now; the gateway's log says where it broke."})
    except Exception as error:
        # Its text may hold what a client sent, or a path.
        print(f"stillframe: replay for the dashboard: {place_of(error)}", file=sys.stderr)
        _say({"error": _FAILED})


def _say(line: dict[str, Any]) -> None:
    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
