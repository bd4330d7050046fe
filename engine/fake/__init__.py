"""A deterministic, block-accurate engine without a model: vLLM's caches and wire, for tests, demos and simulations.

FakeEngine      in this process, behind the engine seam
create_app      as an ASGI app; `python -m engine.fake` serves it
FakeCore        synchronously, without HTTP

config.py     what can be set                 tokenizer.py, template.py   chat to token ids
core.py       one engine, synchronously       processor.py                images to tokens
scheduler.py  which tokens run in a step      blocks.py, sequence.py      the prefix cache
driver.py     steps on an event loop          encoder.py                  the encoder cache
app.py        routes                          answers.py, wire.py         what is said, in vLLM's bytes
faults.py     failures on demand              errors.py                   refusals, in vLLM's words
"""

from engine.fake.app import FakeApp, create_app
from engine.fake.config import FakeConfig
from engine.fake.core import FakeCore, Usage
from engine.fake.engine import FakeEngine
from engine.fake.errors import Refused
from engine.fake.faults import Fault

__all__ = ["FakeApp", "FakeConfig", "FakeCore", "FakeEngine", "Fault", "Refused", "Usage", "create_app"]
