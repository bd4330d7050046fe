"""Keep the last images and delete the older ones, each turn: what most clients do today, as a baseline."""

from __future__ import annotations

from dataclasses import dataclass, field

from context.policies.base import Rules, Shaped, View
from context.policies.eviction import Draft


@dataclass(frozen=True, slots=True)
class Sliding:
    """Sends the last `keep_images` images.

    Each turn that deletes an image which was sent before is a break, and all behind that image is prefilled again: with
    an image a turn, in every turn. Pinned images stay and do not count; those of the current turn stay and count.

    Attributes:
        keep_images: so many images stay, the last ones.
        marker: leave the marker of each deleted image in its place; without it nothing stands there.
    """

    keep_images: int = 3
    marker: bool = False
    name: str = "sliding"
    version: str = "1"
    rules: Rules = field(default_factory=Rules)

    def shape(self, view: View) -> Shaped:
        """All but the older images."""
        draft = Draft(view)
        images = list(draft.images())
        older = images[: max(0, len(images) - self.keep_images)]
        gone = [place for place in older if place.message not in draft.locked]
        draft.take_images(gone, leave_marker=self.marker)
        return draft.shaped(f"images deleted: {len(gone)}, those older than the last {self.keep_images}")
