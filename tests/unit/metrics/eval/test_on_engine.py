"""The evaluation on the engine leaves the process as it was."""

from __future__ import annotations

import logging
from collections.abc import Generator

import pytest

from metrics.eval.on_engine import quiet


@pytest.fixture
def log() -> Generator[logging.Logger]:
    logger = logging.getLogger("stillframe.test.quiet")
    logger.setLevel(logging.WARNING)
    yield logger
    logger.setLevel(logging.NOTSET)


def test_a_log_is_quiet_for_a_while_and_then_as_it_was(log: logging.Logger) -> None:
    with quiet(log.name):
        assert not log.isEnabledFor(logging.ERROR)
    assert log.level == logging.WARNING


def test_a_log_speaks_again_after_a_failure(log: logging.Logger) -> None:
    with pytest.raises(OSError, match="gone"), quiet(log.name):
        raise OSError("gone")
    assert log.level == logging.WARNING
