"""Fetching against a real server, and what must never be connected to."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
from aiohttp.abc import AbstractResolver

from context.errors import ImageError, RequestError
from context.images.addresses import AddressPolicy, is_odd_ipv4
from context.images.base import FetchLimits
from context.images.fetch import AddressRefused, ImageFetcher
from tests.unit.images.corpus import read
from tests.unit.images.server import Resolver, Site, running_site

LIMITS = FetchLimits(allow_private=("127.0.0.0/8",), user_agent="stillframe-test")
MAX_BYTES = 100_000
MAX_WAITING = 8


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    async with running_site() as site:
        yield site


async def fetch(url: str, limits: FetchLimits = LIMITS, resolver: AbstractResolver | None = None) -> bytes:
    fetcher = ImageFetcher(limits, MAX_BYTES, MAX_WAITING, resolver)
    try:
        return await read_all(fetcher, url)
    finally:
        await fetcher.close()


async def read_all(fetcher: ImageFetcher, url: str) -> bytes:
    async with fetcher.fetch(url) as body:
        return body


async def refusal(url: str, limits: FetchLimits = LIMITS, resolver: AbstractResolver | None = None) -> ImageError:
    with pytest.raises(ImageError) as caught:
        await fetch(url, limits, resolver)
    return caught.value


@pytest.mark.case("MC-078")
async def test_an_image_and_what_the_server_sees_of_us(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    assert await fetch(site.url("/cookie")) == read("base.png")
    assert [request.path for request in site.requests] == ["/cookie", "/image.png"]
    headers = site.requests[1].headers
    assert headers["User-Agent"] == "stillframe-test"
    assert headers["Accept-Encoding"] == "identity"
    assert "Cookie" not in headers


@pytest.mark.parametrize(
    ("path", "code", "reason"),
    [
        ("/forbidden", "image_fetch_failed", "http_status 403"),
        ("/html", "image_fetch_failed", "not_an_image"),
        ("/gzip", "image_fetch_failed", "content_encoding"),
        ("/empty", "empty_image", "empty"),
        ("/large", "image_too_large", "100000 bytes"),
        ("/endless", "image_too_large", "100000 bytes"),
        ("/to?/to?/to?/to?/image.png", "image_fetch_failed", "redirect"),
        ("/to?", "image_fetch_failed", "redirect"),
        ("/to?http://169.254.169.254/latest/", "image_url_blocked", "not public"),
        ("/to?http://[::ffff:169.254.169.254]/", "image_url_blocked", "not public"),
        ("/to?file:///etc/passwd", "image_url_blocked", "http and https"),
        ("/to?http://user:secret@127.0.0.1/", "image_url_blocked", "user name"),
    ],
)
@pytest.mark.case("MC-047", "MC-095", "MC-097")
async def test_refusals(site: Site, path: str, code: str, reason: str) -> None:
    error = await refusal(site.url(path))
    assert error.code == code
    assert reason in error.message
    assert "secret" not in error.message
    assert "passwd" not in error.message


async def test_redirects_are_followed_up_to_the_bound(site: Site) -> None:
    path = "/to?/to?/image.png"
    assert await fetch(site.url(path), replace(LIMITS, max_redirects=2)) == read("base.png")
    assert (await refusal(site.url(path), replace(LIMITS, max_redirects=1))).code == "image_fetch_failed"


@pytest.mark.case("MC-047", "MC-078")
async def test_a_slow_body_ends_at_the_time_limit(site: Site) -> None:
    error = await refusal(site.url("/slow"), replace(LIMITS, timeout_seconds=0.05))
    assert (error.code, "(timeout)" in error.message) == ("image_fetch_failed", True)


async def test_waiting_for_a_place_does_not_count_as_slowness(site: Site) -> None:
    fetcher = ImageFetcher(replace(LIMITS, timeout_seconds=0.5, max_concurrent=1), MAX_BYTES, MAX_WAITING)
    urls = (site.url("/slow"), site.url("/image.png"))
    slow, other = await asyncio.gather(*(read_all(fetcher, url) for url in urls), return_exceptions=True)
    assert isinstance(slow, ImageError)
    assert "(timeout)" in slow.message
    assert other == read("base.png")
    await fetcher.close()


async def test_a_place_is_kept_while_the_body_is_used_and_few_may_wait(site: Site) -> None:
    fetcher = ImageFetcher(replace(LIMITS, max_concurrent=1), MAX_BYTES, 1)
    async with fetcher.fetch(site.url("/image.png")):
        waiting = asyncio.create_task(read_all(fetcher, site.url("/image.png")))
        await asyncio.sleep(0)
        with pytest.raises(RequestError) as caught:
            await read_all(fetcher, site.url("/image.png"))
        assert (caught.value.code, caught.value.status, fetcher.refusals) == ("image_queue_full", 429, 1)
        assert len(site.requests) == 1
    assert await waiting == read("base.png")
    await fetcher.close()


async def test_private_addresses_are_not_reached_by_default(site: Site) -> None:
    for url in (site.url("/image.png"), site.url("/image.png", "localhost")):
        assert (await refusal(url, FetchLimits())).code == "image_url_blocked"
    assert not site.requests


@pytest.mark.parametrize("host", ["2130706433", "0x7f000001", "0x7f.1", "127.1", "0177.0.0.1", "017700000001"])
@pytest.mark.case("MC-095")
async def test_odd_spellings_of_an_address_are_refused(site: Site, host: str) -> None:
    assert (await refusal(site.url("/image.png", host))).code == "image_url_blocked"
    assert not site.requests


@pytest.mark.case("MC-095")
async def test_a_name_is_refused_when_one_of_its_addresses_is_private(site: Site) -> None:
    resolver = Resolver(["127.0.0.1", "10.0.0.1"])
    assert (await refusal(site.url("/image.png", "mixed.test"), resolver=resolver)).code == "image_url_blocked"
    assert not site.requests


@pytest.mark.case("MC-095")
async def test_the_checked_address_is_the_one_connected_to(site: Site) -> None:
    resolver = Resolver(["127.0.0.1"], ["10.0.0.1"])
    assert await fetch(site.url("/image.png", "rebinding.test"), resolver=resolver) == read("base.png")
    assert resolver.asked == 1


async def test_every_hop_is_resolved_and_checked_anew(site: Site) -> None:
    resolver = Resolver(["127.0.0.1"], ["10.0.0.1"])
    error = await refusal(site.url("/to?/image.png", "rebinding.test"), resolver=resolver)
    assert (error.code, resolver.asked, len(site.requests)) == ("image_url_blocked", 2, 1)


async def test_unknown_names_and_closed_ports_have_their_own_reasons(site: Site) -> None:
    assert "(dns)" in (await refusal("http://nowhere.test/", resolver=Resolver([]))).message
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        assert "(connect)" in (await refusal(f"http://127.0.0.1:{unused.getsockname()[1]}/")).message
    assert "(tls)" in (await refusal(site.url("/image.png").replace("http:", "https:"))).message
    assert "(invalid_url)" in (await refusal("http://[::1/")).message


async def test_fetching_can_be_switched_off(site: Site) -> None:
    assert (await refusal(site.url("/image.png"), replace(LIMITS, enabled=False))).code == "image_url_blocked"
    assert not site.requests


def test_the_socket_is_checked_whoever_resolved() -> None:
    fetcher = ImageFetcher(LIMITS, MAX_BYTES, MAX_WAITING)
    opened = fetcher.open_socket((socket.AF_INET, socket.SOCK_STREAM, 0, "", ("127.0.0.1", 80)))
    opened.close()
    with pytest.raises(AddressRefused):
        fetcher.open_socket((socket.AF_INET, socket.SOCK_STREAM, 0, "", ("169.254.169.254", 80)))


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1", "0.0.0.0",  # noqa: S104
        "224.0.0.1", "239.1.1.1", "240.0.0.1", "255.255.255.255", "192.0.2.1", "198.18.0.1",
        "::", "::1", "fe80::1", "fe80::1%eth0", "fc00::1", "fd12::1", "fec0::1", "ff02::1", "2001:db8::1",
        "::ffff:127.0.0.1", "::ffff:10.0.0.1", "::127.0.0.1", "::ffff:0:10.0.0.1", "64:ff9b::7f00:1",
        "64:ff9b::a9fe:a9fe", "64:ff9b:1::1", "2002:7f00:1::", "2001:0:0:0:0:0:f5ff:fffe", "not an address", "",
    ],
)  # fmt: skip
def test_addresses_that_are_not_public(address: str) -> None:
    assert not AddressPolicy().permits(address)


@pytest.mark.parametrize(
    "address", ["1.1.1.1", "93.184.216.34", "2606:4700::1111", "64:ff9b::101:101", "::ffff:1.1.1.1"]
)
def test_public_addresses(address: str) -> None:
    assert AddressPolicy().permits(address)


def test_allowed_networks() -> None:
    policy = AddressPolicy(["10.0.0.0/8", "fd00::/8"])
    assert policy.permits("10.1.1.1")
    assert policy.permits("::ffff:10.1.1.1")
    assert policy.permits("fd00::1")
    assert not policy.permits("192.168.0.1")


def test_names_and_plain_addresses_are_not_odd() -> None:
    assert not any(map(is_odd_ipv4, ("example.com", "127.0.0.1", "::1", "1e100.net", "0x.example")))
