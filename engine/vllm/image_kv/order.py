"""Which images go first when room is needed: those used least recently, the cheap ones before the dear ones.

All that is held of one image goes together. Greedy-Dual-Size: a group's rank is the clock at its last use plus its cost
for each byte; the clock is the rank of the last group that went. A dear image so outlives cheap ones that were used
after it, but not for ever. With equal costs this is plain least recently used.

Source: Cao and Irani, "Cost-Aware WWW Proxy Caching Algorithms", USITS 1997.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(slots=True)
class _Group:
    members: dict[str, tuple[int, float]] = field(default_factory=dict[str, tuple[int, float]])
    rank: tuple[float, int] = (0.0, 0)

    @property
    def bytes(self) -> int:
        return sum(size for size, _ in self.members.values())


class Order:
    """Members in groups, with their bytes and costs. Knows nothing of where they are."""

    def __init__(self) -> None:
        self._groups: dict[str, _Group] = {}
        self._group_of: dict[str, str] = {}
        self._clock = 0.0
        self._uses = itertools.count()
        self.bytes = 0
        """Of all members."""

    def __contains__(self, member: str) -> bool:
        return member in self._group_of

    def __len__(self) -> int:
        return len(self._group_of)

    def members(self) -> list[str]:
        """All members, in no order."""
        return list(self._group_of)

    def add(self, member: str, group: str, size: int, cost: float) -> None:
        """Add a member that is not there, as used now."""
        self._groups.setdefault(group, _Group()).members[member] = (size, cost)
        self._group_of[member] = group
        self.bytes += size
        self.touch(member)

    def touch(self, member: str) -> None:
        """A member is used: its group becomes the latest."""
        group = self._groups[self._group_of[member]]
        cost = sum(cost for _, cost in group.members.values())
        group.rank = (self._clock + cost / max(1, group.bytes), next(self._uses))

    def remove(self, member: str) -> None:
        """Take a member out; one that is not there is none."""
        name = self._group_of.pop(member, None)
        if name is None:
            return
        group = self._groups[name]
        self.bytes -= group.members.pop(member)[0]
        if not group.members:
            del self._groups[name]

    def make_room(self, room: int, needed: Callable[[str], bool]) -> list[str] | None:
        """Take whole groups out, lowest rank first, until at least `room` bytes are gone.

        Args:
            room: bytes.
            needed: whether a member must stay; its group stays then.

        Returns:
            The members that were taken out; None, and nothing is taken out, when there is not so much.
        """
        chosen: list[str] = []
        found, clock = 0, self._clock
        for name, group in sorted(self._groups.items(), key=lambda item: item[1].rank):
            if found >= room:
                break
            if not any(needed(member) for member in group.members):
                chosen.append(name)
                found, clock = found + group.bytes, group.rank[0]
        if found < room:
            return None
        self._clock = clock
        members = [member for name in chosen for member in self._groups[name].members]
        for member in members:
            self.remove(member)
        return members
