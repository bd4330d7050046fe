"""A gateway that is killed loses no turn that the ledger said was kept."""

from __future__ import annotations

import asyncio
import json
import random
import sys
from asyncio.subprocess import PIPE
from pathlib import Path

from context.ledger import Ledger
from tests.contract.ledger_chats import assistant, chain, messages, new_turn, user
from tests.e2e.ledger_writer import history

_KILLS = 50


async def test_killed_at_random_moments_it_loses_no_turn(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    seed = random.randrange(2**32)  # noqa: S311
    print("seed", seed)
    writer = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.e2e.ledger_writer", str(path), str(seed)), stdin=PIPE, stdout=PIPE
    )
    assert writer.stdin is not None
    assert writer.stdout is not None
    kept = 0
    for number in range(_KILLS):
        writer.stdin.write(f"{number}\n".encode())
        reports = json.loads(await writer.stdout.readline())
        ledger = await Ledger.open(path)
        for conversation, turns, replied in reports:
            await _is_found(ledger, conversation, turns, replied)
        # The next one always works.
        await ledger.commit("t", new_turn([user(f"after {number}")], conversation=f"after {number}"))
        assert ledger.stats().failures == 0
        await ledger.close()
        kept += len(reports)
    writer.stdin.close()
    assert await writer.wait() == 0
    assert kept > _KILLS
    assert not path.with_name("ledger.db.damaged").exists()
    ledger = await Ledger.open(path)
    assert await ledger.latest("t", "after 0") is not None
    await ledger.close()


async def _is_found(ledger: Ledger, conversation: str, turns: int, replied: bool) -> None:
    wires = history(conversation, turns)
    request = [*wires, assistant(f"answer {turns - 1}"), user("next")] if replied else wires
    found = await ledger.find("t", chain(request))
    assert found is not None
    assert (found.length, found.at_reply, found.turn.number) == (len(wires) + replied, replied, turns)
    assert found.turn.client[: len(wires)] == messages(wires)
    assert [one.wire for one in found.turn.sent][: len(wires)] == wires
