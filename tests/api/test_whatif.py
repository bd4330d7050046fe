"""Recorded turns under other policies: one answer for all processes, under the policies that are in force."""

from __future__ import annotations

import asyncio
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from app import settings as settings_module
from app.dashboard.kept import States
from app.dashboard.whatif import Comparisons
from context.policies.choice import Policies, PolicyRule, load_policy, read_policy
from context.policies.document import PRESETS
from metrics.prometheus import WORKERS_FOLDER
from tests.api.rig import ADMIN, Rig, ask, running, user

JSON = {"content-type": "application/json", **ADMIN}
WHATIF = "/dashboard/api/whatif"
MINE = "name: mine\nversion: '{version}'\nkind: sliding\ndescription: my own\nsliding: {{keep_images: {images}}}\n"


async def replayed(rig: Rig) -> Any:
    state = (await rig.call("POST", WHATIF, headers=JSON)).json
    async with asyncio.timeout(60):
        while state["state"] in ("waiting", "running"):
            await asyncio.sleep(0.02)
            state = (await rig.get(WHATIF, ADMIN)).json
    assert state["state"] == "done", state
    return state["result"]


async def test_the_policies_are_those_in_force_whatever_became_of_their_files(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(MINE.format(version="1", images=3))
    async with running(tmp_path / "data", environment={"POLICY": str(file)}) as rig:
        assert (await rig.chat(ask(user("hi")))).status == 200
        file.write_text(MINE.format(version="2", images=9))
        shown = {one["policy"]: one["version"] for one in (await replayed(rig))["policies"]}
        assert shown["mine"] == "1"
        file.unlink()
        assert "mine" in {one["policy"] for one in (await replayed(rig))["policies"]}


@pytest.mark.parametrize("name", PRESETS)
def test_a_policy_is_the_same_in_another_process(name: str) -> None:
    policy = load_policy(name)
    again = read_policy(policy.written())
    assert (again.document, again.rules, again.quotas) == (policy.document, policy.rules, policy.quotas)


@pytest.mark.parametrize(
    ("tenant", "names"),
    [
        (None, ["stable", "sliding", "batched", "observe"]),
        ("acme", ["stable", "sliding", "observe"]),
        ("globex", ["stable", "batched", "observe"]),
        ("other", ["stable", "observe"]),
    ],
)
def test_a_tenant_sees_the_policies_that_it_can_be_under(tenant: str | None, names: list[str]) -> None:
    rules = [PolicyRule("sliding", tenant="acme"), PolicyRule("batched", tenant="globex"), PolicyRule("observe")]
    policies = Policies.load("stable", rules, ["stable"])
    assert [one.name for one in policies.of_tenant(tenant)] == names


async def test_every_worker_tells_of_what_one_has_made(tmp_path: Path) -> None:
    folder, data = tmp_path / "workers", tmp_path / "data"
    folder.mkdir()
    async with running(data) as rig:
        assert (await rig.chat(ask(user("hi")))).status == 200
    settings = settings_module.load(environment={"STILLFRAME_DATA_DIR": str(data)})
    one, other, alone = (Comparisons(settings, data / "ledger.db", shared) for shared in (folder, folder, None))
    engine = rig.engine.info()
    assert one.start(None, engine, [load_policy("stable")])["state"] == "waiting"
    # Asked for again at another worker, it is under way.
    assert other.start(None, engine, [load_policy("stable")])["state"] in ("waiting", "running")
    async with asyncio.timeout(60):
        while other.state(None)["state"] != "done":
            assert other.state("acme") == alone.state(None) == {"state": "idle"}
            await asyncio.sleep(0.02)
    assert other.state(None) == one.state(None)
    assert other.state(None)["result"]["turns"] == 1
    for made in (one, other, alone):
        await made.close()


async def test_a_start_is_one_for_all_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def start() -> str:
        async with running(tmp_path / "data") as rig:
            return (await rig.get("/dashboard/api/status", ADMIN)).json["boot"]

    assert await start() != await start()
    monkeypatch.setenv(WORKERS_FOLDER, str(tmp_path))
    assert await start() == await start()


def test_what_a_process_left_that_has_ended_is_under_way_no_more(tmp_path: Path) -> None:
    states = States(tmp_path)
    states.put("", {"state": "running", "done": 1, "of": 2})
    assert states.get("") == {"state": "running", "done": 1, "of": 2}
    (file,) = tmp_path.glob("whatif-*.json")
    with subprocess.Popen(["true"]) as child:
        child.wait()
    file.write_text(file.read_text().replace(str(os.getpid()), str(child.pid)))
    assert states.get("") is None
    for number in range(40):
        states.put(f"={number}", {"state": "idle"})
    assert len([*tmp_path.glob("whatif-*.json")]) == 32


async def test_one_at_a_time_of_all_processes(tmp_path: Path) -> None:
    one, other, order = States(tmp_path), States(tmp_path), list[str]()

    async def work(states: States, name: str, begun: asyncio.Event) -> None:
        async with states.alone():
            order.append(f"{name} begins")
            begun.set()
            for _ in range(20):
                await asyncio.sleep(0)
            order.append(f"{name} ends")

    begun = asyncio.Event()
    first = asyncio.create_task(work(one, "one", begun))
    await begun.wait()
    await work(other, "other", asyncio.Event())
    await first
    assert order == ["one begins", "one ends", "other begins", "other ends"]
