"""Training goes on where it stopped, learns, and its optimizer does what it says."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer
from torch import nn

from engine.demo_model import bundled_folder
from engine.demo_model.chats import ChatLimits, draw_chat, rng_for
from engine.demo_model.evaluate import weights_digest
from engine.demo_model.scenes import SceneLimits
from engine.demo_model.training.__main__ import main
from engine.demo_model.training.batches import Encoder
from engine.demo_model.training.card import card, plot
from engine.demo_model.training.optimizer import MuonAdam
from engine.demo_model.training.run import Training
from engine.demo_model.training.stages import STAGES, Stage
from engine.demo_model.training.vocabulary import demo_tokenizer
from engine.reference.qwen2_5_vl import Shape

SMALL = Shape(
    vocabulary=960,
    hidden=32,
    layers=5,
    heads=2,
    kv_heads=1,
    intermediate=32,
    rope_sections=(2, 3, 3),
    vision_hidden=32,
    vision_layers=2,
    vision_heads=2,
    vision_intermediate=32,
    full_attention=(1,),
)
PICTURES = SceneLimits(max_side=112)
QUESTIONS = ChatLimits({"background": 1.0, "colour": 1.0}, max_images=2, questions=(2, 3), scenes=PICTURES)
VISION = Stage("pictures", 1e9, (1e-3, 1e-3), PICTURES)
TEXT = Stage("questions", 1e9, (1e-3, 1e-3), PICTURES, ((1.0, QUESTIONS),), tokens=600, tower=True)


def training(folder: Path, *stages: Stage) -> Training:
    tokenizer = Tokenizer.from_file(str(bundled_folder() / "tokenizer.json"))
    folder.mkdir(exist_ok=True)
    return Training(folder, tokenizer, lambda _: None, stages=stages, shape=SMALL)


def weights(trained: Training) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in trained.model.parameters()]


def test_it_goes_on_where_it_stopped(tmp_path: Path) -> None:
    for stage in (VISION, TEXT):
        whole, parts = tmp_path / f"whole {stage.name}", tmp_path / f"parts {stage.name}"
        at_once = training(whole, stage)
        at_once.run(until_step=2)
        first = training(parts, stage)
        first.run(until_step=1)
        again = training(parts, stage)
        assert again.progress.step == 1
        assert all(map(torch.equal, weights(again), weights(first)))
        again.run(until_step=2)
        if stage is VISION:
            # Each step of pictures has a seed of its own, so that the way there does not matter.
            assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(weights(again), weights(at_once), strict=True))
        assert again.progress.total_seconds > first.progress.total_seconds


def test_only_what_a_stage_teaches_moves(tmp_path: Path) -> None:
    trained = training(tmp_path / "vision", VISION)
    before = {name: parameter.detach().clone() for name, parameter in trained.model.named_parameters()}
    trained.run(until_step=2)
    moved = {name for name, parameter in trained.model.named_parameters() if not torch.equal(parameter, before[name])}
    assert moved
    assert all(name.startswith("vision") for name in moved)


def test_a_stage_ends_and_the_next_begins(tmp_path: Path) -> None:
    said: list[str] = []
    short = Stage("pictures", 1e-6, (1e-3, 1e-3), PICTURES)
    tokenizer = Tokenizer.from_file(str(bundled_folder() / "tokenizer.json"))
    trained = Training(tmp_path, tokenizer, said.append, stages=(short, TEXT), shape=SMALL)
    trained.run(until_step=2)
    assert said == ["Stage 1 of 2: pictures.", "Stage 2 of 2: questions."]
    assert (trained.progress.stage, trained.progress.step) == (1, 2)


def test_the_losses_fall(tmp_path: Path) -> None:
    trained = training(tmp_path / "pictures", VISION)
    losses = [trained._vision_step(VISION, 3e-3)["loss"] for _ in range(12)]  # pyright: ignore[reportPrivateUsage]
    assert sum(losses[-3:]) < 0.8 * sum(losses[:3])


def test_muon_makes_every_direction_of_an_update_alike() -> None:
    torch.manual_seed(0)
    matrix, vector = nn.Parameter(torch.randn(24, 16)), nn.Parameter(torch.randn(16))
    optimizer = MuonAdam([("layer.weight", matrix), ("norm.weight", vector)], decay=0.0)
    before = matrix.detach().clone()
    matrix.grad = torch.randn(24, 2) @ torch.randn(2, 16) + 0.05 * torch.randn(24, 16)
    vector.grad = torch.ones(16)
    optimizer.step(0.1)
    singular = torch.linalg.svdvals((before - matrix.detach()) / (0.1 * 0.2 * 24**0.5))
    assert float(singular.min()) > 0.4
    assert float(singular.max()) < 1.4
    assert matrix.grad is None


def test_the_tokenizer_of_a_training_is_made_once(tmp_path: Path) -> None:
    made = demo_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text(made.to_str().replace('"background"', '"background"'))
    assert demo_tokenizer(tmp_path).get_vocab() == made.get_vocab()


def test_scores_of_other_weights_are_not_exported(tmp_path: Path) -> None:
    folder, to = tmp_path / "training", tmp_path / "to"
    folder.mkdir()
    Training(folder, demo_tokenizer(folder), lambda _: None).save()
    scores = tmp_path / "scores.json"
    command = [str(folder), "--export", str(to)]
    main(command)
    told = json.loads((bundled_folder() / "scores.json").read_text())
    scores.write_text(json.dumps(told))
    with pytest.raises(SystemExit, match="The scores are of other weights"):
        main([*command, "--scores", str(scores)])
    assert not (to / "README.md").exists()
    scores.write_text(json.dumps(told | {"weights_sha256": weights_digest(to)}))
    main([*command, "--scores", str(scores)])
    assert json.loads((to / "scores.json").read_text())["weights_sha256"] == weights_digest(to)


def test_a_count_is_not_shown_where_to_look() -> None:
    encoder = Encoder(Tokenizer.from_file(str(bundled_folder() / "tokenizer.json")))
    for kind, looks in (("count", 0), ("background", 1)):
        limits = ChatLimits({kind: 1.0}, max_images=1, questions=(1, 1), scenes=PICTURES)
        chat = draw_chat(rng_for("train", 1), "train", limits)
        assert len(encoder.batch([encoder.encode(chat)]).looks_from) == looks


def test_the_card_tells_every_figure_and_the_curves_are_drawn(tmp_path: Path) -> None:
    scores = {
        "groups": {"g": {"questions": 500, "accuracy": 0.975, "chance": 0.25}},
        "kinds": {
            "colour": {"questions": 500, "accuracy": 0.96, "chance": 0.2},
            "count": {"questions": 9, "accuracy": 0.5, "chance": 0.25},
        },
        "yardsticks": ["colour"],
        "agreement": 0.994,
        "compared": 500,
    }
    text = card(scores, 5_500_000, 11_000_000, 77)
    for words in (
        "5.5 million",
        "11.0 MB",
        "77 minutes",
        "| g | 0.975 | 0.25 |",
        "| colour | 0.960 | 0.20 | yes |",
        "99.4%",
    ):
        assert words in text
    assert all(stage.name in text for stage in STAGES)
    history = [
        {"seconds": 30 * step, "step": step, "thing": 0.5, "ground": 0.9, "colour": 0.1 * step} for step in range(9)
    ]
    plot(json.loads(json.dumps(history)), tmp_path / "curves.png")
    assert (tmp_path / "curves.png").stat().st_size > 10_000
