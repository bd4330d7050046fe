"""What the remote engine's own HTTP client promises on the wire, on asyncio's event loop and on uvloop's."""

from __future__ import annotations

import asyncio
import gc
import weakref

import pytest
from yarl import URL

from context.errors import EngineProtocolError, EngineTimeout, EngineUnavailable, RequestError
from engine.remote.answer import MAX_HEAD_BYTES
from engine.remote.transport import AttemptFailed
from tests.contract.cases import eventually
from tests.contract.http1_server import (
    BOTH_LOOPS,
    FINE,
    MEGABYTE,
    OK,
    answered,
    ask,
    breaks_off,
    client,
    client_of_many,
    event_loop_policy,
    failure,
    serving,
    slowly,
)

__all__ = ["event_loop_policy"]

pytestmark = BOTH_LOOPS


class TestFraming:
    async def test_chunks_cut_at_every_byte(self) -> None:
        head = OK + b"Transfer-Encoding: Chunked\r\n\r\n"
        whole = head + b'5\r\nhello\r\n00a;name="v;"\r\n, world\r\n!\r\n0\r\nx-ratelimit-late: 1\r\nt: \r\n\r\n'
        cuts = [(whole[:at], whole[at:]) for at in range(1, len(whole))]
        single = [bytes([byte]) for byte in whole]
        async with serving(*cuts, single) as server, client(server.url) as transport:
            for _ in range(len(cuts) + 1):
                assert await ask(transport, server.url) == (200, {}, b"hello, world\r\n!")
            assert server.connections == 1

    @pytest.mark.parametrize(
        ("answer", "body", "connections"),
        [
            (FINE, b"ok", 1),
            (OK + b"content-length: 0\r\nx:\r\n\r\n", b"", 1),
            (b"HTTP/1.1 204 No Content\r\n\r\n", b"", 1),
            (b"HTTP/1.0 200 OK\r\ncontent-length: 2\r\nconnection: keep-alive\r\n\r\nok", b"ok", 1),
            (b"HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\nok", b"ok", 2),
            (OK + b"connection: close\r\ncontent-length: 2\r\n\r\nok", b"ok", 2),
            # Behind its end: too long a body, rubbish, and an answer that nobody asked for.
            (OK + b"content-length: 2\r\n\r\nok!", b"ok", 2),
            (OK + b"transfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n\0", b"ok", 2),
            (FINE + OK + b"content-length: 3\r\n\r\nbad", b"ok", 2),
            (FINE + b"HTTP/1", b"ok", 2),
        ],
    )
    async def test_where_an_answer_ends(self, answer: bytes, body: bytes, connections: int) -> None:
        assert await answered([answer], [FINE]) == ([body, b"ok"], connections)

    @pytest.mark.parametrize("head", [OK + b"\r\n", b"HTTP/1.0 200 OK\r\nx: y\r\n\r\n"])
    async def test_no_length_ends_with_the_connection(self, head: bytes) -> None:
        assert await answered([head + b"all of", b" it", b""], [FINE]) == ([b"all of it", b"ok"], 2)

    async def test_no_answer_to_head_has_a_body(self) -> None:
        chunked = OK + b"transfer-encoding: chunked\r\n\r\n"
        lengthy = OK + b"content-length: 100\r\n\r\n"
        assert await answered([chunked], [lengthy], [lengthy], method="HEAD") == ([b""] * 3, 1)
        assert await answered([lengthy + b"body"], [lengthy], method="HEAD") == ([b""] * 2, 2)

    async def test_interim_answers_are_skipped(self) -> None:
        interim = (
            b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nretry-after: 5\r\ncontent-length: 9\r\n\r\n"
        )
        async with serving([interim, FINE], [interim + FINE]) as server, client(server.url) as transport:
            for _ in range(2):
                assert await ask(transport, server.url) == (200, {}, b"ok")
            assert server.connections == 1

    @pytest.mark.parametrize(
        "answer",
        [
            b"SSH-2.0-server\r\n",
            b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: h2c\r\n\r\n",
            OK + b"content-length: 2\r\ncontent-length: 2\r\n\r\nok",
            OK + b"content-length: 2, 2\r\n\r\nok",
            OK + b"content-length: -2\r\n\r\nok",
            OK + b"content-length: 99999999999999999999\r\n\r\nok",
            OK + b"content-length: 2\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
            OK + b"transfer-encoding: chunked\r\ncontent-length: 2\r\n\r\n2\r\nok\r\n0\r\n\r\n",
            OK + b"transfer-encoding: gzip, chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
            OK + b"transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
            OK + b"content-type: a\nx: b\r\n\r\n",
            OK + b"content-type: a\r\n b\r\n\r\n",
        ],
    )
    async def test_what_is_not_http(self, answer: bytes) -> None:
        failed = await failure([answer])
        assert failed.kind == "unknown"
        assert isinstance(failed.error, EngineProtocolError)
        assert failed.error.message == "The upstream engine's answer is not HTTP."


class TestBounds:
    @pytest.mark.parametrize("step", [1000, 10 * MAX_HEAD_BYTES])
    @pytest.mark.parametrize(
        "head",
        [
            OK + b"x: " + b"y" * MAX_HEAD_BYTES + b"\r\n",
            OK + b"x: y\r\n" * (MAX_HEAD_BYTES // 4),
            b"HTTP/1.1 103 Early Hints\r\nx: y\r\n\r\n" * (MAX_HEAD_BYTES // 4),
        ],
        ids=["one-header", "many-headers", "many-heads"],
    )
    async def test_too_long_a_head(self, head: bytes, step: int) -> None:
        whole = head + b"content-length: 0\r\n\r\n"
        failed = await failure([whole[at : at + step] for at in range(0, len(whole), step)])
        assert isinstance(failed.error, EngineProtocolError)

    async def test_a_long_head_is_taken(self) -> None:
        long = OK + b"x: " + b"y" * (MAX_HEAD_BYTES - 1000) + b"\r\ncontent-length: 2\r\n\r\nok"
        assert await answered([long], [long]) == ([b"ok", b"ok"], 1)

    @pytest.mark.parametrize("end", [b"2;" + b"x" * 2 * MAX_HEAD_BYTES, b"0\r\n" + b"t: v\r\n" * MAX_HEAD_BYTES])
    async def test_framing_without_end(self, end: bytes) -> None:
        start = OK + b"transfer-encoding: chunked\r\n\r\n2\r\nok\r\n"
        await breaks_off([start, end], b"ok")

    async def test_a_slow_reader_holds_up_the_upstream(self) -> None:
        size = 64 * MEGABYTE

        async def pour(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await server.request(reader)
            writers.append(writer)
            writer.write(OK + b"content-length: %d\r\n\r\n" % size + bytes(size))
            await server.request(reader)
            writer.write(FINE)

        writers: list[asyncio.StreamWriter] = []
        async with serving(handler=pour) as server, client(server.url) as transport:
            async with transport.send("GET", server.url, headers={}) as reply:
                taken = 0
                for _ in range(2):
                    left, same = size, 0
                    while same < 500:
                        await asyncio.sleep(0)
                        before, left = left, writers[0].transport.get_write_buffer_size()
                        same = same + 1 if left == before else 0
                    assert left > size - 16 * MEGABYTE
                    taken += len(await anext(reply.chunks))
                assert taken + len(await reply.read(size)) == size
            assert (await ask(transport, server.url))[2] == b"ok"
            assert server.connections == 1


class TestSending:
    async def test_an_answer_before_the_body_is_out(self) -> None:
        async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 413 Too Large\r\ncontent-length: 2\r\n\r\nno")
            await asyncio.Event().wait()

        async with serving(handler=refuse) as server, client(server.url) as transport:
            for _ in range(2):
                assert await ask(transport, server.url, body=[bytes(32 * MEGABYTE)]) == (413, {}, b"no")
            assert server.connections == 2

    async def test_the_body_goes_on_behind_the_answers_head(self) -> None:
        body = [b"[", b"a" * 5_000_000, b",", b"b" * 40_000, b"c" * 300, b"d" * 600_000, b"]"]

        async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            for _ in range(2):
                await reader.readuntil(b"\r\n\r\n")
                await slowly(writer, OK + b"content-length: %d\r\n\r\n" % size)
                writer.write(await reader.readexactly(size))

        size = sum(map(len, body))
        async with serving(handler=talk) as server, client(server.url) as transport:
            for _ in range(2):
                assert (await ask(transport, server.url, body=body))[2] == b"".join(body)
            assert server.connections == 1

    @pytest.mark.parametrize("reads", [True, False])
    async def test_nobody_takes_or_answers_it(self, reads: bool) -> None:
        async def idle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while reads:
                await reader.read(MEGABYTE)
            await asyncio.Event().wait()

        async with serving(handler=idle) as server, client(server.url, read_timeout_seconds=0.2) as transport:
            with pytest.raises(AttemptFailed) as failed:
                await ask(transport, server.url, body=[bytes(32 * MEGABYTE)])
        assert isinstance(failed.value.error, EngineTimeout)
        assert failed.value.kind == "unknown"
        assert ("did not answer" if reads else "did not take the request") in failed.value.error.message

    @pytest.mark.parametrize(
        ("method", "name", "value"),
        [
            ("GET", "x", "a\r\ny: b"),
            ("GET", "x", "a\nb"),
            ("GET", "x", "a\rb"),
            ("GET", "x", "a\0"),
            ("GET", "x", "\u20ac"),
            ("GET", "x: y", "a"),
            ("GET", "x\r\ny", "a"),
            ("GET", "", "a"),
            ("GET", "content-length", "5"),
            ("GET", "transfer-encoding", "chunked"),
            ("GET", "host", "other"),
            ("GET / HTTP/1.1\r\nx:", "x", "a"),
        ],
    )
    async def test_a_head_that_would_be_another(self, method: str, name: str, value: str) -> None:
        async with serving([FINE]) as server, client(server.url) as transport:
            with pytest.raises(RequestError):
                await ask(transport, server.url, method, headers={name: value})
            with pytest.raises(RequestError):
                await ask(transport, URL(f"{server.url}/a b\r\nx: y", encoded=True), "GET")
            assert server.connections == 0

    async def test_the_head(self) -> None:
        async with serving([FINE]) as server, client(server.url) as transport:
            await ask(transport, server.url / "a%2Fb" % {"q": "ä"}, headers={"x-name": "caf\xe9"}, body=[b"12", b"3"])
        lines = (
            f"POST /v1/a%252Fb?q=%C3%A4 HTTP/1.1\r\nhost: 127.0.0.1:{server.url.port}\r\naccept-encoding: identity\r\n"
            "user-agent: stillframe\r\nx-name: caf\xe9\r\ncontent-length: 3\r\n\r\n"
        )
        assert server.heads == [lines.encode("latin-1")]


class TestEndingEarly:
    @pytest.mark.parametrize(
        ("answers", "kind"),
        [
            ([[b""]], "unknown"),
            ([[b"HTTP/1.1 2", b""]], "unknown"),
            ([[FINE], [b""]], "stale"),
            ([[FINE], [b"HTTP/1.1 2", b""]], "unknown"),
        ],
    )
    async def test_before_the_head_is_there(self, answers: list[list[bytes]], kind: str) -> None:
        failed = await failure(*answers)
        assert (failed.kind, type(failed.error)) == (kind, EngineUnavailable)

    @pytest.mark.parametrize(
        ("head", "end"),
        [
            (b"content-length: 9", b""),
            (b"transfer-encoding: chunked", b"5\r\nh"),
            (b"transfer-encoding: chunked", b"1\r\nh\r\n"),
            (b"transfer-encoding: chunked", b"1\r\nh\r\n0\r\n"),
            (b"transfer-encoding: chunked", b"1\r\nh\r\nx\r\n"),
        ],
    )
    async def test_in_the_middle(self, head: bytes, end: bytes) -> None:
        """What came before is given all the same."""
        await breaks_off([OK + head + b"\r\n\r\n" + (end or b"h"), b""], b"h")

    async def test_at_once(self) -> None:
        async def closes(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.transport.abort()

        async with serving(handler=closes) as server, client(server.url) as transport:
            for _ in range(20):
                with pytest.raises(AttemptFailed):
                    await ask(transport, server.url)

    async def test_cancelled_at_any_moment(self) -> None:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while True:
                await server.request(reader)
                await slowly(
                    writer, OK + b"transfer-encoding: chunked\r\n", b"\r\n1\r\n", b"o\r\n1\r\nk", b"\r\n0\r\n\r\n"
                )

        async with serving(handler=answer) as server, client(server.url, connections=1) as transport:
            before, finished, steps = asyncio.all_tasks(), 0, 0
            while finished < 3:
                steps += 1
                work = asyncio.create_task(ask(transport, server.url, body=[b"x" * (steps % 2) * 300_000]))
                for _ in range(steps):
                    await asyncio.sleep(0)
                work.cancel()
                await asyncio.wait([work])
                finished += not work.cancelled()
            assert steps > 10
            # The one slot is free, nothing of what was cancelled is left, and none of its bytes come here.
            assert await ask(transport, server.url) == (200, {}, b"ok")

            async def one_left() -> bool:
                return server.open == 1

            await eventually(one_left)
            assert len(asyncio.all_tasks() - before) == 1


class TestResting:
    async def test_the_last_used_comes_first_and_the_rest_go(self) -> None:
        async with client_of_many(keep_alive_seconds=0.05) as (server, transport):
            first = server.connections
            assert first > 1
            for _ in range(3):
                await ask(transport, server.url)
            assert (server.connections, len(set(server.readers[-3:]))) == (first, 1)
            await eventually(server.all_closed)
            await ask(transport, server.url)
            assert server.connections == first + 1

    @pytest.mark.parametrize("unasked", [b"HTTP/1.1 408 Request Timeout\r\ncontent-length: 0\r\n\r\n", b"\r\n", b""])
    async def test_one_that_the_server_ends(self, unasked: bytes) -> None:
        async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await server.request(reader)
            writer.write(FINE)
            await more.wait()
            if unasked:
                writer.write(unasked)
                await reader.read()

        more = asyncio.Event()
        async with serving(handler=speak) as server, client(server.url, keep_alive_seconds=60) as transport:
            await ask(transport, server.url)
            more.set()
            await eventually(server.all_closed)
            assert (await ask(transport, server.url))[2] == b"ok"
            assert server.connections == 2

    async def test_a_transport_that_is_closed_is_let_go(self) -> None:
        async with client_of_many() as (_, transport):
            await transport.close()
            left = weakref.ref(transport)
        del transport
        gc.collect()
        assert left() is None
