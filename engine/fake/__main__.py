"""Serves a fake engine on a port: `python -m engine.fake --port 9000`."""

from __future__ import annotations

import argparse
import json
import socket
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import uvicorn

from context.errors import ConfigError
from context.visual_tokens import VisualShape
from engine.fake.app import create_app
from engine.fake.config import FakeConfig

_HELP = {
    "model": "the model's name on the wire",
    "block_tokens": "tokens in one KV block",
    "num_blocks": "KV blocks; as in vLLM, one of them holds nothing",
    "max_model_tokens": "longest prompt and answer together",
    "max_batched_tokens": "tokens that one step may compute",
    "max_running": "sequences that run at a time",
    "max_images_per_prompt": "images in one prompt",
    "processor_cache_bytes": "size of the processor cache",
    "encoder_cache_embeddings": "size of the encoder cache (default: as max-batched-tokens)",
    "encoder_budget_embeddings": "embeddings that one step may compute (default: as max-batched-tokens)",
    "prefill_seconds_per_token": "time for each prompt token that is not cached",
    "decode_seconds_per_token": "time for each generated token",
    "encoder_seconds_per_embedding": "time for each embedding that is not cached",
    "answer_tokens": "length of a derived answer",
}
_KINDS: dict[str, type[str] | type[float]] = {"model": str} | {name: float for name in _HELP if "seconds" in name}


def parse(arguments: Sequence[str] | None = None) -> tuple[argparse.Namespace, FakeConfig]:
    """Read the command line.

    Raises:
        ConfigError: a checkpoint's settings cannot be read.
    """
    parser = argparse.ArgumentParser(
        prog="python -m engine.fake",
        description="Serve a fake engine: vLLM's chat API, caches, usage and errors, without a model. The same prompt "
        "always gets the same answer.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on")
    parser.add_argument("--port", type=int, default=9000, help="port to listen on; 0 takes a free one and prints it")
    parser.add_argument("--checkpoint", type=Path, help="folder whose tokenizer, chat template and image sizes to use")
    for name, text in _HELP.items():
        flag, default = f"--{name.replace('_', '-')}", getattr(FakeConfig(), name)
        parser.add_argument(flag, type=_KINDS.get(name, int), default=default, help=text)
    parser.add_argument("--echo", action="store_true", help="answer with the last user message")
    parser.add_argument(
        "--script", action="append", default=[], metavar="TEXT", help="answer this; repeat for a series"
    )
    parser.add_argument("--tool-calls", action="store_true", help="answer with a call when tools are offered")
    parser.add_argument("--no-uuid", action="store_true", help="behave as an upstream that knows no image uuid")
    parser.add_argument("--refuse-cache-salt", action="store_true", help="refuse the parameter cache_salt")
    parser.add_argument("--no-cache-report", action="store_true", help="leave out prompt_tokens_details")
    options = parser.parse_args(arguments)
    named = {name: getattr(options, name) for name in _HELP}
    config = FakeConfig(
        **named,
        checkpoint=options.checkpoint,
        visual=visual_shape(options.checkpoint) if options.checkpoint else VisualShape(),
        echo=options.echo,
        script=tuple(options.script),
        tool_calls=options.tool_calls,
        accepts_uuid=not options.no_uuid,
        refuses_cache_salt=options.refuse_cache_salt,
        reports_cache=not options.no_cache_report,
    )
    return options, config


def visual_shape(folder: Path) -> VisualShape:
    """Image sizes of a checkpoint, from its `preprocessor_config.json`.

    Raises:
        ConfigError: the folder has none, or it is not JSON.
    """
    try:
        settings: dict[str, Any] = json.loads((folder / "preprocessor_config.json").read_text())
    except (OSError, ValueError) as error:
        raise ConfigError("--checkpoint", "preprocessor_config.json", "is missing or not JSON") from error
    size: dict[str, int] = settings.get("size") or {}
    shape = VisualShape()
    return replace(
        shape,
        patch=settings.get("patch_size", shape.patch),
        merge=settings.get("merge_size", shape.merge),
        min_pixels=size.get("shortest_edge") or settings.get("min_pixels") or shape.min_pixels,
        max_pixels=size.get("longest_edge") or settings.get("max_pixels") or shape.max_pixels,
    )


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio turns Nagle's algorithm off only for sockets that name their protocol; with it on, small chunks wait.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        # It listens before the port is printed: whoever reads the line can connect.
        listener.listen(2048)
    except OSError:
        listener.close()
        raise
    return listener


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line of the module; gives the exit status."""
    try:
        options, config = parse(arguments)
        app = create_app(config)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    try:
        listener = _listen(options.host, options.port)
    except OSError as error:
        print(f"--port {options.port}: cannot listen on {options.host}: {error.strerror}.", file=sys.stderr)
        print("Stop what uses it, or choose another with --port N (0 takes a free one).", file=sys.stderr)
        return 1
    port = listener.getsockname()[1]
    print(f"fake engine {config.model} on http://{options.host}:{port}", flush=True)
    uvicorn.Server(uvicorn.Config(app, log_level="warning", access_log=False)).run(sockets=[listener])
    return 0


if __name__ == "__main__":
    sys.exit(main())
