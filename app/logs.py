"""Where the gateway's log goes, and who is quiet in it."""

from __future__ import annotations

import logging
import sys

_QUIET = ("asyncio", "PIL", "matplotlib", "vllm", "transformers", "torch")
# It logs an error for each request that a client gets wrong.
_SILENT = ("vllm.entrypoints",)


def configure_logging(level: str) -> None:
    """One line a record on standard error, without the text of foreign exceptions.

    May be called again: vLLM and its libraries set the process's logging up anew when they are imported.
    """
    logging.basicConfig(
        level=level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr, force=True
    )
    for names, quiet in ((_QUIET, logging.ERROR), (_SILENT, logging.CRITICAL)):
        for name in names:
            logging.getLogger(name).setLevel(quiet)
