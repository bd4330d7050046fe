"""A turn that was made ready while the engine worked is kept as any other."""

from __future__ import annotations

from tests.contract.ledger_chats import answer, assistant, at, chain, new_reply, new_turn, same, system, user
from tests.contract.ledger_rigs import Rig, rig

__all__ = ["rig"]


async def test_a_draft_is_found_only_once_it_is_kept(rig: Rig) -> None:
    wires = [system(), user("one", 1)]
    new = new_turn(wires)
    draft = rig.ledger.draft("t", new)
    assert draft is not None
    assert await rig.ledger.find("t", chain([*wires, user("two")])) is None
    kept = await rig.ledger.commit("t", new, new_reply([*wires, assistant("a")]), draft)
    ledger = await rig.again()
    found = await ledger.find("t", chain([*wires, assistant("a"), user("two")]))
    assert at(found) == (kept.id, 3, True)
    assert found is not None
    assert same(found.turn, kept)


async def test_a_reply_to_the_turn_before_may_come_between_draft_and_commit(rig: Rig) -> None:
    wires = [system(), user("one")]
    parent = await rig.ledger.commit("t", new_turn(wires))
    more = [*wires, user("never mind, two")]
    new = new_turn(more, parent)
    draft = rig.ledger.draft("t", new)
    assert draft is not None
    await answer(rig.ledger, parent, wires, "late")
    kept = await rig.ledger.commit("t", new, draft=draft)
    kept = await answer(rig.ledger, kept, more, "b")
    ledger = await rig.again()
    found = await ledger.find("t", chain([*more, assistant("b"), user("three")]))
    assert at(found) == (kept.id, 4, True)
    assert found is not None
    assert same(found.turn, kept)
    assert [message.role for message in found.turn.client] == ["system", "user", "user", "assistant"]


async def test_two_drafts_of_one_parent_become_two_branches(rig: Rig) -> None:
    wires = [system(), user("one")]
    trunk = await answer(rig.ledger, await rig.ledger.commit("t", new_turn(wires)), wires, "a")
    branches = [[*wires, assistant("a"), user(word)] for word in ("left", "right")]
    news = [new_turn(one, trunk) for one in branches]
    drafts = [rig.ledger.draft("t", new) for new in news]
    for new, draft in reversed(list(zip(news, drafts, strict=True))):
        assert draft is not None
        await rig.ledger.commit("t", new, draft=draft)
    ledger = await rig.again()
    for one in branches:
        found = await ledger.find("t", chain([*one, user("on")]))
        assert found is not None
        assert [message.digest for message in found.turn.client] == [message.digest for message in new_turn(one).client]


async def test_a_parent_of_another_tenant_is_not_drafted_on(rig: Rig) -> None:
    wires = [system(), user("one")]
    theirs = await rig.ledger.commit("t", new_turn(wires))
    mine = new_turn([*wires, user("two")], theirs, tenant="other")
    assert rig.ledger.draft("other", mine) is None


async def test_a_parent_that_is_in_the_file_alone_is_not_drafted_on(rig: Rig) -> None:
    wires = [system(), user("one")]
    parent = await answer(rig.ledger, await rig.ledger.commit("t", new_turn(wires)), wires, "a")
    more = [*wires, assistant("a"), user("two")]
    ledger = await rig.again()
    new = new_turn(more, parent)
    draft = ledger.draft("t", new)
    assert (draft is None) == (rig.path is not None)
    kept = await ledger.commit("t", new, draft=draft)
    found = await ledger.find("t", chain([*more, user("three")]))
    assert at(found) == (kept.id, 4, False)
