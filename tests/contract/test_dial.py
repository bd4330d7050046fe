"""How the remote engine gets its connections: addresses, TLS, time, and being stopped meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import ipaddress
import socket
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from yarl import URL

from context.errors import EngineTimeout, EngineUnavailable
from engine.remote.transport import AttemptFailed
from tests.contract.http1_server import BOTH_LOOPS, FINE, ask, client, event_loop_policy, serving

__all__ = ["event_loop_policy"]

pytestmark = BOTH_LOOPS

_DAY = datetime.timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Certificate:
    """A certificate that vouches for itself, for 127.0.0.1 alone."""

    file: Path
    server: ssl.SSLContext


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test")])
    now = datetime.datetime.now(datetime.UTC)
    builder = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number(), now - _DAY, now + _DAY)
    names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    made = builder.add_extension(names, critical=False).sign(key, hashes.SHA256())
    file = tmp_path_factory.mktemp("tls") / "both.pem"
    plain = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    file.write_bytes(made.public_bytes(serialization.Encoding.PEM) + key.private_bytes(*plain))
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(file)
    return Certificate(file, server)


async def failure(url: URL, **settings: Any) -> AttemptFailed:
    """How a request to a URL fails."""
    async with client(url, **settings) as transport:
        with pytest.raises(AttemptFailed) as failed:
            await ask(transport, url)
        return failed.value


class TestTLS:
    async def test_one_that_is_trusted(self, certificate: Certificate, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate.file))
        answers = [[FINE], [FINE]]
        async with serving(*answers, ssl=certificate.server) as server, client(server.url) as transport:
            assert (await ask(transport, server.url))[2] == b"ok"
            assert (await ask(transport, server.url, body=[bytes(5_000_000)]))[2] == b"ok"
            assert server.connections == 1

    async def test_one_that_nobody_vouches_for(self, certificate: Certificate) -> None:
        async with serving([FINE], ssl=certificate.server) as server:
            failed = await failure(server.url)
        assert failed.kind == "unreachable"
        assert failed.error.message == "The upstream engine's certificate is not trusted."
        assert not server.heads

    async def test_one_of_another_host(self, certificate: Certificate, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate.file))
        async with serving([FINE], ssl=certificate.server) as server:
            failed = await failure(server.url.with_host("localhost"))
        assert failed.error.message == "The upstream engine's certificate is not trusted."
        assert not server.heads

    async def test_a_server_without_it(self) -> None:
        async def plain(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read(1)
            writer.write(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n")
            await reader.read()

        async with serving(handler=plain) as server:
            failed = await failure(server.url.with_scheme("https"))
        assert failed.kind == "unreachable"
        assert "does not speak TLS" in failed.error.message

    @pytest.mark.parametrize("ends", ["cancel", "close", "time"])
    async def test_a_handshake_without_end(self, ends: str) -> None:
        came, gone = asyncio.Event(), asyncio.Event()

        async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            came.set()
            with contextlib.suppress(ConnectionError):
                await reader.read()
                await reader.read()
            gone.set()

        seconds = 0.1 if ends == "time" else 60
        async with (
            serving(handler=silent) as server,
            client(server.url.with_scheme("https"), connect_timeout_seconds=seconds, connections=1) as transport,
        ):
            work = asyncio.create_task(ask(transport, server.url))
            if ends != "time":
                await came.wait()
            if ends == "cancel":
                work.cancel()
            elif ends == "close":
                await transport.close()
            (outcome,) = await asyncio.gather(work, return_exceptions=True)
            async with asyncio.timeout(20):
                if came.is_set():
                    await gone.wait()
        if ends == "cancel":
            assert isinstance(outcome, asyncio.CancelledError)
            return
        assert isinstance(outcome, AttemptFailed)
        assert outcome.kind == ("unreachable" if ends == "time" else "unknown")
        assert isinstance(outcome.error, EngineTimeout if ends == "time" else EngineUnavailable)


@pytest.fixture
def unanswered() -> Iterator[int]:
    """A port of 127.0.0.2 where connecting takes for ever: its queue is full and nobody empties it."""
    with socket.socket() as listener, contextlib.ExitStack() as stack:
        listener.bind(("127.0.0.2", 0))
        listener.listen(0)
        for _ in range(4):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(listener.getsockname())
        yield listener.getsockname()[1]


def _resolve_to(monkeypatch: pytest.MonkeyPatch, *addresses: tuple[str, int]) -> None:
    """Let every name stand for these IPv4 addresses."""

    def resolve(*_: object, **__: object) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", address) for address in addresses]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)


class TestAddresses:
    async def test_the_next_one_does_not_wait_for_the_first(
        self, unanswered: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async with serving([FINE]) as server:
            _resolve_to(monkeypatch, ("127.0.0.2", unanswered), ("127.0.0.1", server.url.port or 0))
            url = server.url.with_host("two.example")
            before = asyncio.all_tasks()
            async with client(url, connect_timeout_seconds=20) as transport:
                assert (await ask(transport, url))[2] == b"ok"
                await asyncio.sleep(0)
                assert {task for task in asyncio.all_tasks() - before if "_connect" in repr(task)} == set()

    async def test_none_answers(self, unanswered: int, monkeypatch: pytest.MonkeyPatch) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            free = listener.getsockname()[1]
        url = URL("http://two.example/v1")
        _resolve_to(monkeypatch, ("127.0.0.1", free), ("127.0.0.1", free))
        refused = await failure(url)
        _resolve_to(monkeypatch, ("127.0.0.2", unanswered), ("127.0.0.2", unanswered))
        silent = await failure(url, connect_timeout_seconds=0.4)
        assert (refused.kind, type(refused.error)) == ("unreachable", EngineUnavailable)
        assert (silent.kind, type(silent.error)) == ("unreachable", EngineTimeout)

    @pytest.mark.parametrize("host", ["no-such-host.invalid", f"{'a' * 70}.invalid"])
    async def test_a_name_without_one(self, host: str) -> None:
        failed = await failure(URL(f"http://{host}/v1"))
        assert failed.kind == "unreachable"
        assert failed.error.message == "The upstream engine cannot be reached."

    async def test_an_address_of_version_6(self) -> None:
        try:
            socket.create_server(("::1", 0), family=socket.AF_INET6).close()
        except OSError:
            pytest.skip("this machine has no IPv6")
        async with serving([FINE], host="::1") as server, client(server.url) as transport:
            assert (await ask(transport, server.url))[2] == b"ok"
        assert f"\r\nhost: [::1]:{server.url.port}\r\n".encode() in server.heads[0]
