"""How soon what was used is used again, learned from what is, and from what is not.

Conversations are watched, and images, each under a name. What room in a cache is worth that one of them takes up is the
chance that it is read again, for the time until then: its hit density. It is estimated by how often it was used (once;
two or three times; more often) and by how long ago that was. The chance to come back within a stretch of time is Kaplan
and Meier's estimate, for which one that has not come back yet counts for as long as it was watched, whether or not the
cache still holds it. So what is evicted does not bias what is learned. As long as little was seen, a prior says that
what was away for long will be away for long, and that is the order of least recent use.

Time is counted in uses, of all that is watched: a clock that stands still while the engine does.

Sources: Beckmann, Chen and Cidon, "LHD: Improving Cache Hit Rate by Maximizing Hit Density", NSDI 2018; Kaplan and
Meier, "Nonparametric Estimation from Incomplete Observations", JASA 1958.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

_CLASSES, _MANY = 4, 4
# Two to an octave: the last one holds all that is older than some ten thousand turns.
_BUCKETS = 28
_BUCKET_OF = [int(2 * math.log2(age + 1)) for age in range(4096)]
_WIDTHS = [max(1.0, 2 ** ((at + 1) / 2) - 2 ** (at / 2)) for at in range(_BUCKETS)]
# Ten made-up ones that come back in each stretch with the same chance: away for twice the time, half as likely within
# the same time.
_PRIOR, _PRIOR_CHANCE = 10.0, 0.15
_DECAY = 0.9995
_LEAST_PERIOD = 16
_CERTAIN = 0.95


@dataclass(slots=True, eq=False)
class Watched:
    """One conversation, or one image.

    Attributes:
        name: what it is found by; another one after each turn of a conversation.
        uses: how many there were.
        last: the time of the last one.
    """

    name: Hashable
    uses: int
    last: int


class Returns:
    """What is watched, and how soon such comes back.

    Args:
        most: to watch; what was not used for longest is forgotten.
    """

    def __init__(self, most: int = 4096) -> None:
        self.now = 0
        """Uses so far, of all."""
        self._most = most
        self._watched: OrderedDict[Hashable, Watched] = OrderedDict()
        self._returned = _table(0.0)
        self._given_up = _table(0.0)
        self._densities = _table(0.0)
        self._due = 0
        self._learn()

    def __len__(self) -> int:
        return len(self._watched)

    def use(self, names: Sequence[Hashable]) -> Watched:
        """Something is used. It is watched from the next call of `named` on.

        Args:
            names: that it may have had, the latest last: with none of them it is new.
        """
        self.now += 1
        known = next((name for name in reversed(names) if name in self._watched), None)
        if known is None:
            found = Watched(None, 1, self.now)
        else:
            found = self._watched.pop(known)
            self._returned[kind_of(found.uses)][bucket_of(self.now - found.last)] += 1
            found.uses += 1
            found.last = self.now
        if self.now >= self._due:
            self._learn()
        return found

    def named(self, one: Watched, name: Hashable) -> None:
        """What is used has this name from now on, and no other."""
        if self._watched.get(one.name) is one:
            del self._watched[one.name]
        one.name = name
        self._watched[name] = one
        self._watched.move_to_end(name)
        if len(self._watched) > self._most:
            _, gone = self._watched.popitem(last=False)
            self._given_up[kind_of(gone.uses)][bucket_of(self.now - gone.last)] += 1

    def density(self, uses: int, last: int) -> float:
        """Hits to expect for each use of anything that such a one stays.

        Args:
            uses: how many it has had.
            last: when the last one was.
        """
        # Looked up for each group at each eviction, so without calls.
        age = self.now - last
        bucket = _BUCKET_OF[age if age > 0 else 0] if age < len(_BUCKET_OF) else bucket_of(age)
        return self._densities[uses.bit_length() if uses < _MANY else _CLASSES - 1][bucket]

    def _learn(self) -> None:
        """Estimate anew. The more is watched the longer it takes, and the less often it is done."""
        period = max(_LEAST_PERIOD, len(self._watched) // _LEAST_PERIOD)
        self._due = self.now + period
        idle = _table(0.0)
        for one in self._watched.values():
            idle[kind_of(one.uses)][bucket_of(self.now - one.last)] += 1
        kept = _DECAY**period
        for kind in range(_CLASSES):
            gone = [self._given_up[kind][at] * kept for at in range(_BUCKETS)]
            back = [self._returned[kind][at] * kept for at in range(_BUCKETS)]
            self._given_up[kind], self._returned[kind] = gone, back
            left = [still + lost for still, lost in zip(idle[kind], gone, strict=True)]
            self._densities[kind] = _densities(back, left)


def kind_of(uses: int) -> int:
    """The class: 1 for one use, 2 for two or three, 3 for more."""
    return uses.bit_length() if uses < _MANY else _CLASSES - 1


def bucket_of(age: int) -> int:
    """The stretch of time that an age belongs to."""
    return _BUCKET_OF[age] if age < len(_BUCKET_OF) else min(int(2 * math.log2(age + 1)), _BUCKETS - 1)


def _table(value: float) -> list[list[float]]:
    return [[value] * _BUCKETS for _ in range(_CLASSES)]


def _densities(returned: list[float], left: list[float]) -> list[float]:
    """Hit density by age, in one class.

    Args:
        returned: how many came back after such a time.
        left: how many have been away for such a time and have not come back.
    """
    chances = [0.0] * _BUCKETS
    watched = 0.0
    for at in reversed(range(_BUCKETS)):
        watched += returned[at]
        # Who is within the stretch has been watched for half of it.
        chances[at] = (returned[at] + _PRIOR * _PRIOR_CHANCE) / (watched + left[at] / 2 + _PRIOR)
        watched += left[at]
    return [_density(chances, at) for at in range(_BUCKETS)]


def _density(chances: list[float], start: int) -> float:
    """Hits for each unit of waiting, for the time to wait at which this is highest."""
    away, hits, waited, best = 1.0, 0.0, 0.0, 0.0
    for at in range(start, _BUCKETS):
        chance = min(_CERTAIN, chances[at])
        waited += away * _WIDTHS[at] * (1 - chance / 2)
        hits += away * chance
        away *= 1 - chance
        best = max(best, hits / waited)
    return best
