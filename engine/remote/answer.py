"""An HTTP/1.1 answer as it comes in.

The parser is llhttp, through httptools, and is strict. What it leaves to its user is here: how much may be held, where
an answer without a length ends, and what comes before and behind an answer.
"""

from __future__ import annotations

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

# Bound of an answer's head with the interim ones before it, of its trailers, and of any framing between two pieces.
MAX_HEAD_BYTES = 64 * 1024


class NotHTTP(Exception):
    """What came is not an answer, or not one to what was asked."""


class Answer:
    """Reads the answers of one connection, one after another: `begin`, then `feed` until `done`.

    `heard` says that something came at all. `status` and `fields` (names in lower case, the values of one name joined)
    hold once it is `headed`. `waiting` are the pieces of its body that nobody took yet, `waiting_bytes` how many bytes
    they are. `lasting` says, once it is `done`, whether the connection can carry another request.
    """

    __slots__ = (
        "_bodiless",
        "_head_bytes",
        "_overhead_bytes",
        "_parser",
        "_until_close",
        "done",
        "fields",
        "headed",
        "heard",
        "lasting",
        "status",
        "waiting",
        "waiting_bytes",
    )

    def __init__(self) -> None:
        self._parser = HttpResponseParser(self)
        self.waiting: list[bytes] = []
        self.begin(bodiless=False)
        # Before the first request and between two: whatever comes then was not asked for.
        self.done = self.lasting = True

    def begin(self, *, bodiless: bool) -> None:
        """Expect the next answer. `bodiless`: it has no body, whatever its head says."""
        self._bodiless = bodiless
        self._head_bytes = self._overhead_bytes = self.waiting_bytes = self.status = 0
        self._until_close = self.headed = self.heard = self.done = self.lasting = False
        self.fields: dict[bytes, bytes] = {}
        self.waiting.clear()

    def feed(self, data: bytes) -> None:
        """Read on.

        Raises:
            NotHTTP: it makes no sense. What was whole before it stays, and is `done` if the answer was.
        """
        self.heard = True
        self._overhead_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except (HttpParserError, HttpParserUpgrade) as error:
            raise NotHTTP from error
        if self._overhead_bytes > MAX_HEAD_BYTES and not self.done:
            raise NotHTTP

    def end(self) -> None:
        """No more will come, and in good order: some answers are `done` by that."""
        if self.headed and self._until_close:
            self.done = True

    def take(self) -> bytes:
        """What is waiting, as one piece."""
        pieces = self.waiting
        piece = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        pieces.clear()
        self.waiting_bytes = 0
        return piece

    def _finish(self) -> None:
        self.done = True
        self.lasting = self._parser.should_keep_alive()

    # Called by the parser. What they raise, it raises as an HttpParserError.

    def on_message_begin(self) -> None:
        """Called by the parser."""
        if self.done:
            # A second answer to one request: who can say which of the next ones it belongs to?
            self.lasting = False

    def on_header(self, name: bytes, value: bytes) -> None:
        """Called by the parser, also for trailers, which are dropped."""
        self._head_bytes += len(name) + len(value) + 4
        if self._head_bytes > MAX_HEAD_BYTES:
            raise NotHTTP
        if not self.headed:
            name = name.lower()
            known = self.fields.get(name)
            self.fields[name] = value if known is None else known + b", " + value

    def on_headers_complete(self) -> None:
        """Called by the parser."""
        status = self._parser.get_status_code()
        if self.done or 100 <= status < 200:
            return
        coding = self.fields.get(b"transfer-encoding")
        if coding is not None and coding.strip().lower() != b"chunked":
            raise NotHTTP
        self.status, self.headed = status, True
        self._until_close = coding is None and b"content-length" not in self.fields
        if self._bodiless:
            # The parser cannot be told. It goes on to wait for a body, so the next answer gets another one.
            self._finish()
            self._parser = HttpResponseParser(self)

    def on_body(self, body: bytes) -> None:
        """Called by the parser."""
        if self.done:
            self.lasting = False
            return
        self.waiting.append(body)
        self.waiting_bytes += len(body)
        self._overhead_bytes = 0

    def on_message_complete(self) -> None:
        """Called by the parser."""
        if not self.headed:
            # An interim answer: the one that counts is still to come. At 101 the parser itself gives up.
            self.fields = {}
        elif not self.done:
            self._finish()
