"""What all tests share: the random checkpoint, one real engine for the session, and what this machine cannot run."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncGenerator
from pathlib import Path

import hypothesis
import pytest
import pytest_asyncio

from engine.base import Engine
from engine.demo_model import bundled_folder

# A slow machine is no fault of what is tested.
hypothesis.settings.register_profile(
    "stillframe", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("stillframe")

_EXIT_STATUS = "PYTEST_STILLFRAME_EXIT_STATUS"


def _bind_engines() -> None:
    """Give the engines of each test process a core of their own. vLLM leaves the first core that it may use to others,
    so that on two cores the engines of all processes would compute on the same one."""
    worker = os.environ.get("PYTEST_XDIST_WORKER", "").removeprefix("gw")
    if worker.isdigit() and hasattr(os, "sched_getaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", str(cores[int(worker) % len(cores)]))


_bind_engines()


def _missing(marker: str) -> str | None:
    """Why tests of a marker cannot run here; None when they can."""
    if marker == "vllm" and importlib.util.find_spec("vllm") is None:
        return "vLLM is not installed: make install"
    if marker == "gpu" and shutil.which("nvidia-smi") is None:
        return "there is no GPU here"
    if marker == "services" and not os.environ.get("STILLFRAME_TEST_S3_URL"):
        return "no object store server: set STILLFRAME_TEST_S3_URL"
    if marker == "browser" and shutil.which("chromium") is None:
        return "there is no Chromium here"
    return None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip, with the reason, what this machine cannot run; let the slow engine's tests come last."""
    for item in items:
        for marker in ("vllm", "gpu", "services", "browser"):
            if item.get_closest_marker(marker) and (reason := _missing(marker)):
                item.add_marker(pytest.mark.skip(reason=reason))
        if item.get_closest_marker("vllm"):
            # Its libraries warn at import of what is theirs to mend.
            item.add_marker(pytest.mark.filterwarnings("ignore"))
    items.sort(key=lambda item: item.get_closest_marker("vllm") is not None)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(exitstatus: int) -> None:
    """Remember how it ended, for `pytest_unconfigure`."""
    os.environ[_EXIT_STATUS] = str(int(exitstatus))


@pytest.hookimpl(trylast=True)
def pytest_unconfigure() -> None:
    """End at once where vLLM was loaded: taking its libraries down prints pages about their own leaks."""
    if "vllm" in sys.modules and (status := os.environ.get(_EXIT_STATUS)):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(int(status))


@pytest.fixture(scope="session")
def demo_checkpoint() -> Path:
    """The bundled demo model."""
    return bundled_folder()


@pytest.fixture(scope="session")
def random_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The seeded random checkpoint in its default shape, made by its own command."""
    folder = tmp_path_factory.mktemp("models") / "random"
    subprocess.run(
        [sys.executable, "-m", "engine.demo_model.random_checkpoint", str(folder)], check=True, capture_output=True
    )
    return folder


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def vllm_engine(demo_checkpoint: Path) -> AsyncGenerator[Engine]:
    """The real engine on small caches, started once."""
    from engine.vllm.embedded import VllmEngine
    from engine.vllm.options import VllmSettings
    from tests.contract.test_fake_matches_vllm import VLLM_OPTIONS

    # Gives the routes by which a test makes the engine forget its images without the gateway knowing.
    os.environ["VLLM_SERVER_DEV_MODE"] = "1"
    engine = VllmEngine(VllmSettings(str(demo_checkpoint), "demo", VLLM_OPTIONS, kv_cache_gib=1))
    await engine.start()
    yield engine
    await engine.stop()
