"""Events of one stream that differ in nothing but their text, counted many at a time.

Law of this file: exact or not at all. A stream's events repeat the same id, model and braces around a
few letters, and servers send an event a chunk. Once one event has been read and its text found, chunks
in the same frame are so many events, and their texts are what stands inside the frames, as long as none
of them has a quote, a backslash or a control character, which could end the string early.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from tidegate.asgi.readers import Tokens

Read = Callable[[Tokens, bytes], None]
"""Reads whole events into a count."""

_MOST_ATTEMPTS = 8  # to find the text; a stream of some other kind must not be searched for ever
_MOST_STRINGS = 16
_LARGEST_EVENT_BYTES = 4096
_STRING = re.compile(rb'"(?:[a-z_]*content|text|reasoning|thinking|delta)"\s*:\s*"([^"\\\x00-\x1f]+)"')
_PROBE = b"tidegate"  # put in the place of a text to see whether it is counted as one
_UNSAFE = b'"\\' + bytes(range(0x20))


class Alike:
    """The frame of a stream's events, once it is known.

    Args:
        sequences: answers side by side, as for `Tokens`.
        read: the general way.
    """

    __slots__ = ("_attempts", "_before", "_between", "_end", "_read", "_sequences")

    def __init__(self, sequences: int, read: Read) -> None:
        self._sequences = sequences
        self._read = read
        self._attempts = 0
        self._before = self._end = self._between = b""

    def take(self, tokens: Tokens, chunks: Sequence[bytes], data: bytes) -> int:
        """Count `data`, which is the chunks joined and begins with an event, as far as it is alike.

        Returns:
            How many chunks, from the first on, were events like the one learnt; the others are not counted.
        """
        if not self._before:
            return 0
        start, stop = len(self._before), -len(self._end)
        texts = [chunk[start:stop] for chunk in chunks]
        if self._before + self._between.join(texts) + self._end != data:
            texts = texts[: self._leading(chunks)]
        joined = b"".join(texts)
        if all(texts) and _is_plain(joined):
            tokens.ascii_bytes += len(joined)
            tokens.counted += len(texts)
        else:
            self._take_each(tokens, texts)
        return len(texts)

    def _leading(self, chunks: Sequence[bytes]) -> int:
        """How many chunks there are before the first one that is not in the frame."""
        before, end = self._before, self._end
        least_bytes = len(before) + len(end)
        for count, chunk in enumerate(chunks):
            if len(chunk) < least_bytes or not (chunk.startswith(before) and chunk.endswith(end)):
                return count
        return len(chunks)

    def learn(self, data: bytes) -> None:
        """Find the frame in the last event of `data`, which the general way has read."""
        if self._attempts >= _MOST_ATTEMPTS or not data.endswith(b"\n\n"):
            return
        self._attempts += 1
        event = data[data.rfind(b"\n\n", 0, -2) + 2 :] if data.count(b"\n\n") > 1 else data
        if len(event) > _LARGEST_EVENT_BYTES:
            return
        for count, found in enumerate(_STRING.finditer(event)):
            before, end = event[: found.start(1)], event[found.end(1) :]
            if count >= _MOST_STRINGS:
                return
            if self._is_text(before, end):
                self._before, self._end, self._between = before, end, end + before
                return

    def _is_text(self, before: bytes, end: bytes) -> bool:
        """Whether what stands there is counted as one token's text, and nothing else is counted."""
        scratch = Tokens(self._sequences)
        scratch.is_stream = True
        self._read(scratch, before + _PROBE + end)
        return scratch.is_one_text(len(_PROBE))

    def _take_each(self, tokens: Tokens, texts: list[bytes]) -> None:
        for text in texts:
            if text and _is_plain(text):
                tokens.ascii_bytes += len(text)
                tokens.counted += 1
            else:
                self._read(tokens, self._before + text + self._end)


def _is_plain(text: bytes) -> bool:
    """Whether these bytes stand for themselves inside a JSON string."""
    return text.isascii() and len(text.translate(None, _UNSAFE)) == len(text)
