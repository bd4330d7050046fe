"""What docs/ says is what the code does."""

from __future__ import annotations

import asyncio
import json
import re
from dataclasses import MISSING, fields
from pathlib import Path

import pytest
import yaml

from app.cli import _parser  # pyright: ignore[reportPrivateUsage]
from app.docs import ENGINE_PARTS, PAGES
from app.routes import _EXACT, _PREFIXES  # pyright: ignore[reportPrivateUsage]
from app.settings import flat_keys, load
from context.errors import ConfigError
from engine.base import ImageReuse
from engine.fake import FakeConfig
from engine.vllm.block_tiers.settings import BlockTierSettings
from engine.vllm.features import OWN, block_tiers_of, eviction_of, image_kv_of
from engine.vllm.image_kv.settings import ImageKvSettings
from engine.vllm.options import by_long_name
from metrics.catalogue import CATALOGUE
from metrics.prometheus import GatewayMetrics
from tests.api.pool_rig import PoolEngine, recorded
from tests.api.rig import serving

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


@pytest.mark.parametrize("name", PAGES)
def test_pages_are_up_to_date(name: str) -> None:
    assert (ROOT / name).read_text() == PAGES[name](), "run: make docs"


def test_every_setting_is_explained() -> None:
    page = (DOCS / "settings.md").read_text()
    rows = {key: line for line in page.splitlines() for key in flat_keys() if line.startswith(f"| `{key}` ")}
    assert rows.keys() == set(flat_keys())
    assert [key for key, row in rows.items() if row.endswith("|  |")] == []


def test_every_key_of_the_engines_own_parts_is_explained() -> None:
    page = (DOCS / "settings.md").read_text()
    readme = (ROOT / "README.md").read_text()
    assert {f"engine.vllm.{name.replace('-', '_')}" for name in OWN} == {*ENGINE_PARTS, "engine.vllm.eviction"}
    for prefix, settings in ENGINE_PARTS.items():
        assert f"`{prefix}`" in readme
        rows = dict(re.findall(rf"^\| `{prefix}\.(\w+)` \| (.*) \|$", page, re.M))
        assert rows.keys() == {field.name for field in fields(settings)}
        for field in fields(settings):
            kind, default, meaning = rows[field.name].split(" | ")
            assert kind == field.type
            assert default == ("required" if field.default is MISSING else f"`{json.dumps(field.default)}`")
            assert len(meaning.split()) > 2, field.name
    assert "| `engine.vllm.eviction` | `lru` or `modality` | `lru` | " in page
    assert "`engine.vllm.eviction`" in readme


def test_the_engines_own_parts_are_switched_on_as_the_readme_says() -> None:
    lines = re.findall(r"^\| `engine\.vllm\.\w+` .* `(.+: .+)` \|$", (ROOT / "README.md").read_text(), re.M)
    set_by = [{key.replace("_", "-"): value for key, value in yaml.safe_load(line).items()} for line in lines]
    assert [next(iter(one)) for one in set_by] == list(OWN)
    pool, tiers, eviction = set_by
    assert image_kv_of(pool) == ImageKvSettings(4.0)
    assert block_tiers_of(tiers) == BlockTierSettings(4.0, "/data/kv")
    assert eviction_of(eviction) == "modality"
    with pytest.raises(ConfigError, match="cannot be used beside"):
        block_tiers_of(tiers | pool)


async def test_the_catalogue_is_what_is_exposed() -> None:
    text = GatewayMetrics().exposition(engine_ready=True).decode()
    exposed = set(re.findall(r"^# TYPE (stillframe_\S+) ", text, re.M))
    assert {name for name in exposed if not name.endswith("_created")} == {e.exposed for e in CATALOGUE.values()}


def test_the_readme_names_real_commands() -> None:
    readme = (ROOT / "README.md").read_text()
    commands = set(re.findall(r"`stillframe (\w+)", readme))
    usage = _parser().format_help()
    assert commands
    assert all(re.search(rf"^\s+{command}\s", usage, re.M) for command in commands)
    targets = set(re.findall(r"^(\w+):.*##", (ROOT / "Makefile").read_text(), re.M))
    assert set(re.findall(r"`?make (\w+)", readme)) <= targets


def test_links_lead_somewhere() -> None:
    for page in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *DOCS.rglob("*.md"), *(ROOT / "configs").rglob("*.md")):
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
            if not target.startswith("http"):
                assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_every_route_of_the_administrator_is_explained() -> None:
    page = (DOCS / "admin.md").read_text()
    paths = [*_EXACT, *_PREFIXES]
    mine = [path for path in paths if path.startswith(("/admin/", "/engine/"))]
    assert len(mine) == 4
    assert [path for path in mine if path not in page] == []
    told = set(re.findall(r"`(\w+)`", page.split("Of images' KV")[1].split("## A reset")[0]))
    assert {field.name for field in fields(ImageReuse)} - {"request_id"} <= told


async def test_the_readme_s_way_to_image_kv_leads_to_loaded_tokens(tmp_path: Path) -> None:
    """With a fake engine in place of the one that its settings ask for."""
    part = (ROOT / "README.md").read_text().partition("To try `image_kv`")[2].partition("`block_tiers`")[0]
    settings = tmp_path / "image-kv.yaml"
    (text,) = re.findall(r"```yaml\n(.*?)```", part, re.S)
    settings.write_text(text)
    asked = load(settings, environment={})
    assert image_kv_of(by_long_name(asked.engine.vllm)) == ImageKvSettings(4.0)
    engine = PoolEngine(FakeConfig(model="demo", block_tokens=64), loads=20)
    environment = {"REUSE_HEADER": str(asked.reuse_header)}
    async with serving(tmp_path, engine, environment) as (rig, host, port):
        chats, look = re.findall(r"```bash\n(.*?)```", part.replace("127.0.0.1:8000", f"{host}:{port}"), re.S)
        assert len((await _run(chats)).splitlines()) == 2
        await recorded(rig, 2)
        assert (await _run(look)).endswith(" 20.0\n")


async def _run(script: str) -> str:
    made = await asyncio.create_subprocess_exec("bash", "-euc", script, cwd=ROOT, stdout=asyncio.subprocess.PIPE)
    said, _ = await made.communicate()
    assert made.returncode == 0, script
    return said.decode()
