"""Adds up what a prompt holds: text by kind, token ids, media.

Law of this file: every value that JSON can express is walked without recursion, without an error, and in a
bounded number of steps: of a body of too many parts the rest is not looked at, and `is_cut` says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeGuard

import msgspec

from tidegate.asgi.decode import Upload
from tidegate.asgi.text import mixed_bytes

_MEDIA_TYPES = frozenset(
    {"image", "image_url", "input_image", "image_pil", "image_embeds", "audio", "audio_url", "input_audio"}
    | {"video", "video_url", "input_video", "file", "input_file", "document"}
    | {"audio_embeds", "video_embeds", "prompt_embeds"}
)
_MEDIA_KEYS = frozenset(
    {"image_url", "audio_url", "video_url", "input_audio", "image_embeds", "audio_embeds", "video_embeds"}
    | {"image", "images"}  # of an input to be embedded (SGLang), and of a message (Ollama)
)
MOST_PARTS = 50_000  # looked at in one body; a conversation of thousands of messages has fewer


class Tally:
    """Adds up text, token ids and media."""

    __slots__ = ("ascii_bytes", "media_bytes", "media_items", "other_bytes", "parts", "token_ids")

    def __init__(self) -> None:
        self.ascii_bytes = self.other_bytes = self.token_ids = self.media_items = self.media_bytes = 0
        self.parts = 0

    @property
    def is_cut(self) -> bool:
        """Whether there was more than is looked at."""
        return self.parts > MOST_PARTS

    def text(self, text: str) -> None:
        """Text that the engine reads."""
        if text.isascii():
            self.ascii_bytes += len(text)
        else:
            ascii_bytes, other_bytes = mixed_bytes(text)
            self.ascii_bytes += ascii_bytes
            self.other_bytes += other_bytes

    def add(self, other: Tally, times: int) -> None:
        """All that the other has, so many times."""
        self.ascii_bytes += times * other.ascii_bytes
        self.other_bytes += times * other.other_bytes
        self.token_ids += times * other.token_ids
        self.media_items += times * other.media_items
        self.media_bytes += times * other.media_bytes
        self.parts += other.parts

    def schema(self, value: object) -> None:
        """JSON that a chat template writes out: names and punctuation count too."""
        try:
            self.ascii_bytes += len(msgspec.json.encode(value))
        except (TypeError, ValueError, OverflowError, RecursionError):  # lone surrogates and the like
            self.walk(value)

    def media(self, value: object) -> None:
        """One item each for a list, however deep, and one for anything else but nothing."""
        stack = [value]
        while stack and not self.is_cut:
            item = stack.pop()
            if isinstance(item, list):
                self.parts += len(item)
                stack.extend(item)
            elif item:
                self.media_items += 1
                self.media_bytes += _media_bytes(item)

    def walk(self, value: object) -> None:
        """Everything in a message, a part, a list of either; iterative, so depth is no danger."""
        stack = [value]
        while stack and self.parts <= MOST_PARTS:
            item = stack.pop()
            if isinstance(item, str):
                self.text(item)
            elif isinstance(item, list):
                if item and type(item[0]) is int:
                    self.token_ids += len(item)
                elif are_texts(item):
                    self.text("".join(item))
                else:
                    self.parts += len(item)
                    stack.extend(item)
            elif isinstance(item, dict):
                if _is_media(item):
                    self.media(item)
                    continue
                self.parts += len(item)
                if _MEDIA_KEYS.isdisjoint(item):
                    stack.extend(item.values())
                else:
                    self._beside_media(item, stack)

    def _beside_media(self, item: dict[str, object], stack: list[object]) -> None:
        """Engines read the text of a message or part that is no medium, whatever keys stand beside it."""
        for key, value in item.items():
            if key not in _MEDIA_KEYS:
                stack.append(value)
            elif value and isinstance(value, (str, list, dict)):
                self.media(value if key == "images" else {key: value})


def are_texts(items: Sequence[object]) -> TypeGuard[Sequence[str]]:
    """Whether these are texts and nothing else; empty lists are not."""
    return set(map(type, items)) == {str}


def _is_media(item: dict[str, object]) -> bool:
    """Whether all of it is one medium, by its type; a message (it has a role) is none."""
    kind = item.get("type")
    return isinstance(kind, str) and kind in _MEDIA_TYPES and "role" not in item


def _media_bytes(value: object) -> int:
    """The size of inline media; a URL counts as it stands."""
    if isinstance(value, Upload):
        return value.size_bytes
    size, steps, stack = 0, 0, [value]
    while stack and steps <= MOST_PARTS:
        item = stack.pop()
        steps += 1
        if isinstance(item, str):
            size += len(item)
        elif isinstance(item, (list, dict)):
            stack.extend(item.values() if isinstance(item, dict) else item)
    return size
