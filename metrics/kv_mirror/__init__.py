"""What of the engine's KV cache is resident, and whose it is, from the engine's KV events.

    base.py     the answers' types
    blocks.py   the blocks: which are resident, of which images, used by whom
    mirror.py   the events in their order, gaps, and what belongs to a request

**Whose block is it?** Every request goes to the engine with its id as `session_id`; vLLM's `BlockStored` brings it
back, and no hash depends on it. What a request reads makes no event, and needs none: what it stores names its parent,
and a block's parents are the whole prompt before it, so the deepest block of a request gives all. A request that
stores nothing has read all its full blocks: they are the first ones of the turn before it, as many as its usage says. A
block may belong to several conversations; the latest eight are kept.

**Gaps.** `engine/vllm` asks vLLM for batches that did not come, so a gap is rare. One that stays is counted in `gaps`,
and all that was resident before it is uncertain: neither counted nor denied, until an event says that it is in use, or
gone. What is called resident is resident; what was stored in the gap is not known before a request builds on it.
`AllBlocksCleared`, or an engine that starts anew (its numbers begin again, counted in `restarts`), makes all certain.
"""

from metrics.kv_mirror.base import Eviction, ImageBlocks, MirrorCounts, MirrorView, Owner
from metrics.kv_mirror.mirror import Ending, KvMirror

__all__ = ["Ending", "Eviction", "ImageBlocks", "KvMirror", "MirrorCounts", "MirrorView", "Owner"]
