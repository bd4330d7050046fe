"""An engine behind HTTP: one or several OpenAI-compatible upstreams.

settings    what can be set, checked when it is made
dial        addresses and TLS
request     a request as it stands on the wire
answer      an answer as it comes in
http1       one connection: sends, waits, rests
transport   the connections to one upstream; one request and its answer; errors as ours
probe       what an upstream is: its models, whether it knows uuids and salts
pool        the upstreams: which one a conversation goes to, which are down
engine      the `Engine` over them: retries, health, start and stop
"""

from __future__ import annotations

from engine.remote.engine import RemoteEngine
from engine.remote.settings import RemoteSettings

__all__ = ["RemoteEngine", "RemoteSettings"]
