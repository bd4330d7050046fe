"""`stillframe export`: recorded turns as files that other programs read."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from app.commands import check_writable, credentials, open_gateway, write_json
from app.settings import Settings
from context.errors import ConfigError
from context.store.turn_rows import TurnStoreError

if TYPE_CHECKING:
    from context.transcript import ImagePart
    from metrics.exports.tokens import Load, Tokens

_MOST_BLOCK_TOKENS = 65_536
_EVERY_TURNS = 10


def export(options: argparse.Namespace, settings: Settings) -> int:
    """Write recorded turns. Exit status 0 when all are written.

    Raises:
        ConfigError: an option is wrong, there are no turns, or the file cannot be written.
        EngineUnavailable: the gateway that was named does not answer.
    """
    if not 1 <= options.block_tokens <= _MOST_BLOCK_TOKENS:
        raise ConfigError("flag", "--block-tokens", f"takes a number from 1 to {_MOST_BLOCK_TOKENS}")
    if options.url and options.format == "openai":
        raise ConfigError("flag", "--url", "asks an engine for token ids, and this format has none; leave it out")
    if str(options.out) == "-" and str(options.json) == "-":
        raise ConfigError("flag", "--json", "and --out cannot both be standard output; name a file for one")
    for file in (options.out, options.json):
        check_writable(file)
    try:
        return asyncio.run(_export(options, settings))
    except TurnStoreError as error:
        raise ConfigError(str(settings.data_path / "ledger.db"), "", error.remedy) from error


async def _export(options: argparse.Namespace, settings: Settings) -> int:
    from metrics.exports.turns import recorded_turns
    from metrics.exports.write import write

    console = Console(stderr=True)
    # The turns are read on the way, in this thread: nobody else waits for it.
    with (
        recorded_turns(settings.data_path / "ledger.db", options.tenant) as turns,
        console.status("export") as status,
    ):

        def progress(count: int) -> None:
            if count % _EVERY_TURNS == 0:
                status.update(f"export: {count} turns")

        async with _tokens(options, settings, console) as tokens:
            made = await write(
                turns,
                options.format,
                options.out,
                tokens,
                block_tokens=options.block_tokens,
                replies=options.replies,
                progress=progress,
            )
    if options.json is not None:
        write_json(options.json, {"format": options.format, "file": str(options.out), **asdict(made)})
    console.print(f"{made.turns} turns are in {options.out}.", highlight=False, markup=False, soft_wrap=True)
    if made.unplaced:
        words = f"In {made.unplaced} of them the places of the images are not known: images of one size look equal."
        console.print(words, highlight=False, soft_wrap=True)
    return 0


@asynccontextmanager
async def _tokens(options: argparse.Namespace, settings: Settings, console: Console) -> AsyncGenerator[Tokens | None]:
    """What makes token ids: the engine of a running gateway, or the model's tokenizer in this process."""
    if options.format == "openai":
        yield None
    elif options.url:
        async with _engine_tokens(options.url, settings, console) as tokens:
            yield tokens
    else:
        yield await asyncio.to_thread(_checkpoint_tokens, settings)


@asynccontextmanager
async def _engine_tokens(url: str, settings: Settings, console: Console) -> AsyncGenerator[Tokens]:
    from app import estimates
    from context.tokens.visual import Fixed
    from metrics.experiment_client import GatewayClient
    from metrics.exports.tokens import EngineTokens

    async with open_gateway(url, settings, console) as root, kept_images(settings) as load:
        client = GatewayClient(root, *credentials(settings))
        async with client.connected():
            engine = (await client.state())["engine"]
            rule = estimates.visual_rule(settings, engine["kind"], engine["models"])
            rule = rule or Fixed(settings.estimates.image_tokens)
            model = engine["models"][0] if engine["models"] else ""
            yield EngineTokens(client.tokens, load, rule.tokens, model)


@asynccontextmanager
async def kept_images(settings: Settings) -> AsyncGenerator[Load]:
    """The images that a gateway with these settings keeps, as data URLs. Loading one that it no longer keeps raises
    `ConfigError`."""
    from context.errors import ImageError
    from context.images.service import ImageService
    from context.store.blobs import BlobStore

    store = BlobStore(settings.images.store_url or str(settings.data_path / "images"))
    images = ImageService(settings.images.limits(), settings.fetch.limits(), store)

    async def load(part: ImagePart, tenant: str) -> str:
        try:
            return (await images.payload(part.ref, tenant=tenant)).decode()
        except ImageError as error:
            reason = "needs the images, and one is no longer kept; leave it out to go by their sizes (needs --model)"
            raise ConfigError("flag", "--url", reason) from error

    try:
        yield load
    finally:
        await images.close()
        await store.close()


def _checkpoint_tokens(settings: Settings) -> Tokens:
    """Raises `ConfigError` where there is no tokenizer here that is the model's."""
    from app.model import resolve_model
    from context.tokens import families
    from context.tokens.visual import QwenVl
    from engine.fake import FakeConfig
    from engine.fake.core import FakeCore
    from metrics.exports.tokens import CheckpointTokens

    if settings.upstream:
        reason = "keeps its tokenizer to itself; name the running gateway with --url, or a folder with --model"
        raise ConfigError("settings", "upstream", reason)
    folder = Path(resolve_model(settings)[0])
    rule = families.of_folder(folder) if folder.is_dir() else None
    if not isinstance(rule, QwenVl):
        reason = "is of no family whose prompts can be written here; name the running gateway with --url"
        raise ConfigError("settings", "model", reason)
    most = 1 << 60
    config = FakeConfig(checkpoint=folder, visual=rule.shape, max_images_per_prompt=most, processor_cache_bytes=most)
    return CheckpointTokens(FakeCore(config))
