"""`stillframe replay`: sessions under several policies side by side."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING

from rich.console import Console

from app.commands import check_writable, credentials, open_gateway, write_json
from app.settings import Settings
from context.errors import ConfigError
from context.policies.choice import LoadedPolicy, is_policy_path, load_policy

if TYPE_CHECKING:
    from metrics.replay.base import Target
    from metrics.replay.images import TraceImages
    from metrics.replay.trace import Trace

# Where a real engine answers, a trace's own sizes would pass the demo model's context.
ENGINE_IMAGE, ENGINE_TEXT = "112x112", 0.25


def replay(options: argparse.Namespace, settings: Settings) -> int:
    """Replay sessions. Exit status 0 when all ran to their end.

    Raises:
        ConfigError: an option, a trace or a policy is wrong.
        EngineUnavailable: there is no gateway or engine to run them on, or it failed on the way.
    """
    if options.simulate and options.url:
        raise ConfigError("flag", "--simulate", "needs no gateway; leave out --url")
    for file in (options.json, options.plot, options.export):
        check_writable(file)
    if options.plot is not None and options.plot.suffix != ".png":
        raise ConfigError("flag --plot", str(options.plot), "must end in .png")
    policies = _policies(options)
    traces = _traces(options)
    if options.export is not None:
        return _export(traces, options)
    return asyncio.run(_replay(options, settings, traces, policies))


async def _replay(
    options: argparse.Namespace,
    settings: Settings,
    traces: Sequence[Trace],
    policies: Mapping[str, LoadedPolicy | None],
) -> int:
    from metrics.replay.images import trace_images
    from metrics.replay.report import plot, tables
    from metrics.replay.run import run

    console = Console(stderr=True)
    async with trace_images() as images, _target(options, settings, images, policies, console) as target:
        with console.status("replay") as status:
            rows = await run(target, images, traces, list(policies), status.update)
    if options.json is not None:
        write_json(options.json, {"rows": [asdict(row) for row in rows]})
    shown = Console(stderr=str(options.json) == "-")
    for table in tables(rows):
        shown.print(table)
    if options.plot is not None:
        await asyncio.to_thread(plot, rows, options.plot)
    return 0


@asynccontextmanager
async def _target(
    options: argparse.Namespace,
    settings: Settings,
    images: TraceImages,
    policies: Mapping[str, LoadedPolicy | None],
    console: Console,
) -> AsyncGenerator[Target]:
    if options.simulate:
        from metrics.replay.simulate import Simulation

        yield Simulation(images, {name: policy for name, policy in policies.items() if policy is not None})
        return
    from metrics.experiment_client import GatewayClient
    from metrics.replay.gateway import GatewayTarget

    if not options.url:
        # What clients may ask this gateway for is what was asked for here.
        settings = settings.model_copy(update={"policy_headers": tuple(dict.fromkeys(options.policy))})
    async with open_gateway(options.url, settings, console) as url:
        client = GatewayClient(url, *credentials(settings))
        async with client.connected():
            yield await GatewayTarget.open(client, images)


def _policies(options: argparse.Namespace) -> dict[str, LoadedPolicy | None]:
    """By name. A running gateway may have others than are known here: those are None."""
    found: dict[str, LoadedPolicy | None] = {}
    for given in options.policy:
        if options.url and is_policy_path(given):
            reason = "a running gateway knows policies by name; list the file in its policy_headers and give its name"
            raise ConfigError("flag --policy", given, reason)
        policy = None if options.url else load_policy(given)
        name = given if policy is None else policy.name
        known = found.setdefault(name, policy)
        if known is not None and policy is not None and known.document != policy.document:
            raise ConfigError("flag --policy", given, f"another policy is named {name!r}, too; give each its own name")
    return found


def _traces(options: argparse.Namespace) -> list[Trace]:
    from metrics.replay.options import Sizes, parse_size
    from metrics.replay.traces import load_trace

    is_small = not options.simulate and options.export is None
    size = options.image_size or (ENGINE_IMAGE if is_small else "")
    factor = options.text_scale if options.text_scale is not None else ENGINE_TEXT if is_small else 1.0
    if not 0.0 < factor <= 100.0:
        raise ConfigError("flag", "--text-scale", "takes a factor above 0 and at most 100, such as 0.25")
    sizes = Sizes(parse_size(size, "flag", "--image-size") if size else None, factor, options.seed)
    return [load_trace(spec, sizes) for spec in options.traces]


def _export(traces: Sequence[Trace], options: argparse.Namespace) -> int:
    from metrics.replay.trace import write

    if len(traces) != 1:
        raise ConfigError("flag", "--export", "writes one trace; name one")
    try:
        write(traces[0], options.export)
    except OSError as error:
        reason = f"cannot be written ({error.strerror}); name another file"
        raise ConfigError("flag --export", str(options.export), reason) from error
    Console(stderr=True).print(f"{len(traces[0].turns)} turns are in {options.export}.", highlight=False, markup=False)
    return 0
