"""`stillframe bench`: what the gateway costs, against calling the engine directly and against a plain relay.

    config      which gateway, how many requests
    run         the processes and the order of things
    stages      one measurement each
    load        the client that measures
    processes   starting, watching and ending servers
    relay       the yardstick
    result      rows, limits, verdicts

Everything runs on this machine, over 127.0.0.1, and ratios are taken within one run: absolute times are the machine's.
"""

from __future__ import annotations

from metrics.bench.config import BenchConfig
from metrics.bench.errors import BenchError
from metrics.bench.result import BenchResult, Row
from metrics.bench.run import run

__all__ = ["BenchConfig", "BenchError", "BenchResult", "Row", "run"]
