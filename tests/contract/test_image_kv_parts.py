"""Stretches of a prompt that go to a worker as requests of their own, and what is sent of held images: no pixels."""

# vLLM leaves much of its types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false, reportPrivateUsage=false

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from engine.vllm.image_kv.messages import Report
from engine.vllm.image_kv.planner import Planner
from engine.vllm.image_kv.reporting import Reporter
from tests.unit.engine.image_kv.planned import Request, nothing_cached, step

pytestmark = pytest.mark.vllm

BLOCK_TOKENS, TOKENS, ACTIVE, SLOTS = 4, 80, 7, 8
# Two images of 20 tokens; a quarter of each is computed.
IMAGES = (("one", 5), ("two", 27))


@pytest.fixture(scope="module", autouse=True)
def vllm() -> None:
    from engine import torchvision_ops

    torchvision_ops.declare_missing()


def image(identifier: str, first: int) -> Any:
    """As vLLM has it: pixels, and a grid of 4 by 5 tokens of 2 by 2 patches."""
    import torch
    from transformers import BatchFeature
    from vllm.multimodal.inputs import (
        MultiModalFeatureSpec,
        MultiModalFieldConfig,
        MultiModalKwargsItems,
        PlaceholderRange,
    )

    values = {"pixel_values": torch.zeros(1, 80, 4), "image_grid_thw": torch.tensor([[1, 8, 10]])}
    kinds = {
        "pixel_values": MultiModalFieldConfig.batched("image"),
        "image_grid_thw": MultiModalFieldConfig.batched("image", keep_on_cpu=True),
    }
    (item,) = MultiModalKwargsItems.from_hf_inputs(BatchFeature(values), kinds)["image"]
    return MultiModalFeatureSpec(item, "image", identifier, PlaceholderRange(first, 20))


class Chat(Request):
    """A request with images as vLLM has them, and a prompt."""

    @property
    def mm_features(self) -> list[Any]:
        return [image(name, first) for name, first in self.images]

    @property
    def prompt_token_ids(self) -> list[int]:
        return list(range(self.num_prompt_tokens))


class Admitting:
    """Stands for vLLM's scheduler in the step that admits one request, of which it computes all that it may."""

    def __init__(self, connector: Any, request: Chat) -> None:
        self.connector, self.ec_connector, self.encoder_cache_manager = connector, None, None
        self.requests, self.running, self.waiting = {request.request_id: request}, list[Any](), [request]
        blocks: dict[str, Any] = {request.request_id: (list(range(40)),)}
        pool = SimpleNamespace(get_num_free_blocks=lambda: 100)
        self.kv_cache_manager = SimpleNamespace(block_pool=pool, get_block_ids=blocks.__getitem__)
        self.block_size, self.model_uses_mrope = BLOCK_TOKENS, True
        self.max_num_scheduled_tokens, self.max_num_active_reqs, self.max_num_running_reqs = TOKENS, ACTIVE, SLOTS
        self.finished_req_ids, self.limits = set[str](), (0, 0)

    def schedule(self, throttle_prefills: bool = False) -> Any:
        self.limits = self.max_num_scheduled_tokens, self.max_num_active_reqs
        (request,), planner = self.waiting, self.connector.planner
        planner.admit(request, nothing_cached)
        request.num_computed_tokens = planner.reach(request, 0)
        left = request.num_prompt_tokens - request.num_computed_tokens
        count = planner.cut(request, request.num_computed_tokens, left)
        step(planner, **{request.request_id: count})
        new = SimpleNamespace(req_id=request.request_id, mm_features=request.mm_features)
        return SimpleNamespace(
            scheduled_new_reqs=[new],
            num_scheduled_tokens={request.request_id: count},
            total_num_scheduled_tokens=count,
        )


def scheduled(*missing: str) -> tuple[Any, Any, Chat]:
    """The scheduler after it has admitted a request whose images are held but for those named, and that step."""
    from engine.vllm.image_kv.connector import ImageKvConnector
    from engine.vllm.scheduler import ImageKvScheduling

    class Scheduling(ImageKvScheduling, Admitting):
        pass

    planner, request = Planner(BLOCK_TOKENS, 2, 1, Reporter()), Chat("r", images=IMAGES)
    planner.arrive(request, nothing_cached)
    planner.told(Report({ask.hold: (0, 1) if ask.name.image in missing else (1, 0) for ask in step(planner).asks}))
    connector = ImageKvConnector.__new__(ImageKvConnector)
    connector.planner = planner
    scheduler: Any = Scheduling(connector, request)
    return scheduler, scheduler.schedule(), request


def test_a_step_has_a_prompt_s_stretches_as_requests_that_end_with_it() -> None:
    scheduler, output, request = scheduled()
    own, *parts = output.scheduled_new_reqs
    assert own.req_id == "r"
    assert request.num_computed_tokens == 47
    begun = [(part.num_computed_tokens, output.num_scheduled_tokens[part.req_id]) for part in parts]
    assert begun == [(0, 10), (25, 7)]
    assert output.total_num_scheduled_tokens == sum(output.num_scheduled_tokens.values()) == 3 + 17
    assert all(part.prompt_token_ids == request.prompt_token_ids for part in parts)
    assert all(part.block_ids == (list(range(40)),) for part in parts)
    assert scheduler.finished_req_ids == {part.req_id for part in parts}


def test_a_step_leaves_room_for_them_and_the_next_has_its_own() -> None:
    scheduler, _, _ = scheduled()
    assert scheduler.limits == (TOKENS - 17, SLOTS - 2)
    assert (scheduler.max_num_scheduled_tokens, scheduler.max_num_active_reqs) == (TOKENS, ACTIVE)


def test_no_room_is_left_for_a_request_that_cannot_be_admitted() -> None:
    scheduler, _, request = scheduled()
    request.num_computed_tokens = 0
    scheduler.kv_cache_manager.block_pool.get_num_free_blocks = lambda: 12
    scheduler.schedule()
    assert scheduler.limits == (TOKENS, ACTIVE)


def test_pixels_are_sent_of_images_that_are_not_held_alone() -> None:
    _, output, _ = scheduled("one")
    own, *parts = output.scheduled_new_reqs
    assert [sorted(one.data) for one in own.mm_features] == [["image_grid_thw", "pixel_values"], ["image_grid_thw"]]
    assert [sorted(one.data) for one in parts[0].mm_features] == [["image_grid_thw"], ["image_grid_thw"]]
