"""Counts an answer's output tokens as it goes by, and picks up the usage that the engine reports.

Law of this file: it looks and never touches. Chunks may be cut anywhere; memory is bounded whatever
passes; a few microseconds a chunk; no byte sequence raises.

An event is not a token: under speculative decoding and stream intervals it holds several. So the
estimate is the larger of the events with text (or the token ids, where they are sent) and the text's
bytes over bytes per token; the engine's own usage, when it comes, replaces both.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from tidegate.asgi.alike import Alike
from tidegate.asgi.classify import Dialect, Route
from tidegate.asgi.readers import Tokens, reader_for
from tidegate.asgi.readers_fast import take_event

BYTES_PER_TOKEN = 4.5  # of ASCII answers; longer than in prompts, which hold more code and numbers
OTHER_BYTES_PER_TOKEN = 4.0
_MAX_EVENT_BYTES = 1024 * 1024
_MAX_DOCUMENT_BYTES = 1024 * 1024
_TAIL_BYTES = 16 * 1024
_decode = msgspec.json.Decoder().decode
_COMMON = frozenset({Dialect.OPENAI_CHAT, Dialect.OPENAI_COMPLETIONS})
_JSON_START = (b"{", b"[")


class OutputCounter:
    """Watches one answer of a route, of `sequences` answers side by side."""

    __slots__ = (
        "_alike",
        "_bytes_per_token",
        "_document",
        "_is_common",
        "_lines",
        "_read",
        "_route",
        "_tokens",
    )

    def __init__(self, route: Route, sequences: int = 1, bytes_per_token: float = BYTES_PER_TOKEN) -> None:
        self._route = route
        self._bytes_per_token = bytes_per_token
        self._tokens = Tokens(sequences)
        self._read = reader_for(route.dialect)
        self._is_common = route.dialect in _COMMON
        self._lines: _Lines | None = None
        self._document: _Document | None = None
        self._alike = Alike(sequences, self._read_events)

    def feed(self, *chunks: bytes) -> float:
        """Looks at the next bytes of the body; several chunks at once cost much less than one by one.

        Returns:
            The estimate of all output tokens so far, all sequences together; it never falls but for
            the engine's own report.
        """
        data = chunks[0] if len(chunks) == 1 else b"".join(chunks)
        if self._lines is None and self._document is None:
            self._recognise(data)
        if self._lines is not None:
            self._take_events(self._lines, chunks, data)
        elif self._document is not None:
            self._document.feed(data)
        return self.output_tokens

    @property
    def output_tokens(self) -> float:
        """The estimate so far."""
        tokens = self._tokens
        if tokens.usage is not None and tokens.usage[1] is not None:
            return max(tokens.usage[1], tokens.reported)
        by_bytes = tokens.ascii_bytes / self._bytes_per_token + tokens.other_bytes / OTHER_BYTES_PER_TOKEN
        return max(tokens.counted, tokens.reported, by_bytes)

    @property
    def usage(self) -> tuple[int | None, int | None] | None:
        """(prompt tokens, output tokens) as the engine reported them; read it when the body has ended."""
        self._close()
        return self._tokens.usage

    @property
    def response_id(self) -> str | None:
        """By which a later request may name this answer; read it when the body has ended."""
        self._close()
        return self._tokens.response_id

    @property
    def finished_by_length(self) -> bool:
        """Whether the declared bound cut the answer off; read it when the body has ended."""
        self._close()
        return self._tokens.is_cut

    def _recognise(self, chunk: bytes) -> None:
        start = chunk.lstrip()[:1]
        if not start:
            return
        if self._route.dialect is Dialect.OLLAMA:
            self._lines, self._tokens.is_stream = _Lines(b""), True
        elif start in _JSON_START:
            self._document = _Document()
        else:
            self._lines, self._tokens.is_stream = _Lines(b"data:"), True

    def _take_events(self, lines: _Lines, chunks: Sequence[bytes], data: bytes) -> None:
        was_between = lines.is_between_events
        if was_between and (alike := self._alike.take(self._tokens, chunks, data)):
            if alike == len(chunks):
                return
            data = b"".join(chunks[alike:])
        for payload in lines.feed(data):
            self._event(self._tokens, payload)
        if was_between and lines.is_between_events:
            self._alike.learn(data)

    def _read_events(self, tokens: Tokens, events: bytes) -> None:
        for payload in _Lines(b"data:").feed(events):
            self._event(tokens, payload)

    def _event(self, tokens: Tokens, payload: bytes) -> None:
        if self._is_common and take_event(tokens, payload):
            return
        try:
            event = _decode(payload)
        except (msgspec.DecodeError, RecursionError, UnicodeError):
            return  # `[DONE]`, or nothing that we know
        if isinstance(event, dict):
            self._read(tokens, event)

    def _close(self) -> None:
        if self._lines is not None:
            for payload in self._lines.feed(b"\n"):
                self._event(self._tokens, payload)
        elif self._document is not None:
            payload, self._document = self._document.take(), None
            self._answer(payload)

    def _answer(self, payload: bytes) -> None:
        try:
            answer = _decode(payload)
        except (msgspec.DecodeError, RecursionError, UnicodeError):
            return
        for index, part in enumerate(answer if isinstance(answer, list) else [answer]):
            if isinstance(part, dict):
                self._read(self._tokens, part if "index" in part else {**part, "index": index})


class _Lines:
    """Cuts a body into lines and yields what follows `prefix`; a line of absurd length is skipped."""

    __slots__ = ("_is_skipping", "_prefix", "_rest")

    def __init__(self, prefix: bytes) -> None:
        self._prefix = prefix
        self._rest = b""
        self._is_skipping = False

    @property
    def is_between_events(self) -> bool:
        """Whether the next byte begins a line."""
        return not self._rest and not self._is_skipping

    def feed(self, chunk: bytes) -> list[bytes]:
        if self._is_one_event(chunk):
            return [chunk[len(self._prefix) : -2]]
        data = self._rest + chunk if self._rest else chunk
        if b"\r" in data:
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        lines = data.split(b"\n")
        self._rest = lines.pop()
        if self._is_skipping and lines:
            lines[0] = b""
            self._is_skipping = False
        if len(self._rest) > _MAX_EVENT_BYTES:
            self._rest, self._is_skipping = b"", True
        skip = len(self._prefix)
        return [line[skip:] for line in lines if line and line.startswith(self._prefix)]

    def _is_one_event(self, chunk: bytes) -> bool:
        """Servers send an event a chunk as a rule; then there is nothing to cut or to keep."""
        return (
            self.is_between_events
            and chunk.startswith(self._prefix)
            and chunk.endswith(b"\n\n")
            and chunk.find(b"\n") == len(chunk) - 2
            and b"\r" not in chunk
        )


class _Document:
    """Keeps a JSON answer while it is small, and of a large one the end, where the usage stands."""

    __slots__ = ("_is_large", "_parts", "_size")

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._size = 0
        self._is_large = False

    def feed(self, chunk: bytes) -> None:
        self._parts.append(chunk)
        self._size += len(chunk)
        limit = 2 * _TAIL_BYTES if self._is_large else _MAX_DOCUMENT_BYTES
        if self._size > limit:
            self._is_large = True
            tail = b"".join(self._parts)[-_TAIL_BYTES:]
            self._parts, self._size = [tail], len(tail)

    def take(self) -> bytes:
        """The document, or an object with only the usage from the end of a large one."""
        data = b"".join(self._parts)
        if not self._is_large:
            return data
        start = data.rfind(b'"usage"')
        end = data.find(b"}", start)
        while 0 <= start < end:  # the closing brace of the usage, which may hold further objects
            candidate = b"{" + data[start : end + 1] + b"}"
            if candidate.count(b"{") == candidate.count(b"}"):
                return candidate
            end = data.find(b"}", end + 1)
        return b""
