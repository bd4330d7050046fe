"""What a turn could have read, what it did not, and why.

    base.py        what is known of the turn before, and the answer
    causes.py      the answer from plan, usage and mirror: a pure function
    unseen.py      whether the engine showed the images to its model
    attributor.py  remembers what turns left, and asks the mirror

What the gateway calls, once each for a request:

    attributor.begin(request_id, owner, cache)          before the engine is asked
    attributor.end(request_id, plan, usage, ...)        when the reply is over, whatever its end was
    attributor.drop(request_id)                         instead, where nothing came of it

`end` gives an `Attributing`: its `result()` is certain once it `is_settled`, for where something was lost the engine's
events may come a moment behind its answer. `end` has to be called for a turn before it is called for the next one of
the conversation, for that turn's figures say what could be read. `evicted_image` is the engine's name of an image:
`Tenant.image_uuid` of one of the turn's images, or of those of the turn before.
"""

from metrics.attribution.attributor import Attributing, Attributor
from metrics.attribution.base import Attribution, Cache, Left
from metrics.attribution.causes import attribute

__all__ = ["Attributing", "Attribution", "Attributor", "Cache", "Left", "attribute"]
