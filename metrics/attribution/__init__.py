"""What a turn could have read, what it did not, and why.

    base.py        what is known of the turn before, and the answer
    causes.py      the answer from plan, usage and mirror: a pure function
    attributor.py  remembers what turns left, and asks the mirror

What the gateway calls, once each for a request:

    attributor.begin(request_id, owner, cache)          before the engine is asked
    await attributor.end(request_id, plan, usage, ...)  when the reply is over, whatever its end was
    attributor.drop(request_id)                         instead, where nothing came of it

`end` may wait for the engine's events, up to a second, where something was lost: it belongs beside the request's path.
It has to be begun for a turn before it is begun for the next one of the conversation, for that turn's figures say what
could be read. `evicted_image` is the engine's name of an image: `Tenant.image_uuid` of one of the turn's images,
or of those of the turn before.
"""

from metrics.attribution.attributor import Attributor
from metrics.attribution.base import Attribution, Cache, Left
from metrics.attribution.causes import attribute

__all__ = ["Attribution", "Attributor", "Cache", "Left", "attribute"]
