"""What is bundled is what was measured, is good enough, and comes with the package."""

from __future__ import annotations

import json
import subprocess
import tomllib
from pathlib import Path
from typing import Any

from app.model import DEMO, RANDOM, resolve_model
from app.settings import load
from engine.demo_model import bundled_folder
from engine.demo_model.evaluate import GROUPS, YARDSTICK, weights_digest
from engine.demo_model.questions import KINDS, MULTI_HOP
from engine.demo_model.random_checkpoint import CheckpointShape
from tests.e2e.figures import below_the_card

TEMPLATE = "chat_template.jinja"
ROOT = Path(__file__).parents[3]
SCORES: dict[str, Any] = json.loads((bundled_folder() / "scores.json").read_text())


def test_the_scores_are_of_the_bundled_weights() -> None:
    assert SCORES["weights_sha256"] == weights_digest(bundled_folder())
    assert SCORES["groups"].keys() == {group.name for group in GROUPS}
    assert SCORES["kinds"].keys() == KINDS.keys()


def test_the_bundled_model_answers_well_enough_to_measure_with() -> None:
    right = {name: figures["accuracy"] for name, figures in SCORES["groups"].items()}
    assert right["single-hop, 1-2 images"] >= 0.95
    assert right["single-hop, 3-4 images"] >= 0.85
    multi = [SCORES["groups"][f"multi-hop, {kind}"] for kind in MULTI_HOP]
    assert sum(one["accuracy"] >= 0.85 and one["chance"] < 0.55 for one in multi) >= 3
    assert SCORES["yardsticks"] == [name for name, one in SCORES["kinds"].items() if one["accuracy"] >= YARDSTICK]
    assert len(SCORES["yardsticks"]) >= 6
    assert SCORES["agreement"] >= 0.99
    assert SCORES["compared"] >= 500


def test_sampled_figures_that_are_too_low_are_told() -> None:
    card = SCORES["groups"]

    def sample(name: str, accuracy: float) -> dict[str, Any]:
        return {**card, name: {"questions": 40, "accuracy": accuracy}}

    few = {name: {**figures, "questions": 40} for name, figures in card.items()}
    assert below_the_card(few, card) == []
    for name in card:
        assert name in below_the_card(sample(name, card[name]["chance"]), card)
    # A loss everywhere that no group of 40 shows by itself.
    dull = {name: {"questions": 40, "accuracy": figures["accuracy"] - 0.06} for name, figures in card.items()}
    assert below_the_card(dull, card) == ["all"]


def test_a_wheel_holds_the_model_and_what_it_is_made_of() -> None:
    """A wheel takes what the target includes and version control does not ignore."""
    target = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert "engine" in target["only-include"]
    assert target.keys() == {"only-include"}
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "engine/demo_model"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout.split()
    needed = [*bundled_folder().iterdir(), *(bundled_folder().parent / name for name in ("corpus.txt", TEMPLATE))]
    assert bundled_folder() / "model.safetensors" in needed
    assert {str(file.relative_to(ROOT)) for file in needed} <= set(listed)


def test_the_random_model_is_made_once_in_the_data_folder(tmp_path: Path) -> None:
    settings, demo = (load(None, environment={}, flags={"model": m, "data_dir": str(tmp_path)}) for m in (RANDOM, DEMO))
    folder, options = resolve_model(settings)
    made = Path(folder)
    assert tmp_path in made.parents
    config = json.loads((made / "config.json").read_text())
    assert config["text_config"]["hidden_size"] == CheckpointShape().hidden
    assert weights_digest(made) != weights_digest(bundled_folder())
    before = (made / "model.safetensors").stat().st_mtime_ns
    assert resolve_model(settings) == (folder, options)
    assert (made / "model.safetensors").stat().st_mtime_ns == before
    assert options == resolve_model(demo)[1]
