"""A streamed answer up to the first thing it generates: until then nothing is lost by sending the call again.

Law: for those who ask for it (`retry_streams`). Comments, pings, roles and usage commit to nothing; text, a
tool call, an end, or anything unknown does, and from there on the bytes pass through untouched. A refusal
that comes as an event under status 200 is taken for the answer it would have been. What is held is bounded.
"""

from __future__ import annotations

import json
import re
from typing import Any

_HELD_BYTES = 64 * 1024
_EVENT_END = re.compile(rb"\r\n\r\n|\n\n|\r\r")
_LINE_END = re.compile(rb"\r\n|\n|\r")
_NOTHING_YET = frozenset(
    {
        "ping",
        "message_start",
        "content_block_start",
        "response.created",
        "response.queued",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
    }
)
_REFUSED = re.compile(r"rate_?limit|too_many|quota", re.IGNORECASE)
_OVERLOADED = re.compile(r"overload|busy|unavailable", re.IGNORECASE)


class FirstEvent:
    """Reads server-sent events until one commits.

    Attributes:
        held: the bytes read so far.
        committed: something was generated, or the stream is none to be judged.
        refusal: the status and the JSON body of a refusal that came as an event; None without one.
    """

    def __init__(self) -> None:
        self.held: list[bytes] = []
        self.committed = False
        self.refusal: tuple[int, bytes] | None = None
        self._size = 0
        self._rest = b""

    def feed(self, chunk: bytes) -> bool:
        """Take the next bytes; True when there is no need for more."""
        self.held.append(chunk)
        self._size += len(chunk)
        self.committed = self._size > _HELD_BYTES
        *events, self._rest = _EVENT_END.split(self._rest + chunk)
        for event in events:
            if self.committed or self.refusal is not None:
                break
            self._judge(event)
        return self.committed or self.refusal is not None

    def _judge(self, event: bytes) -> None:
        fields = [line.partition(b":") for line in _LINE_END.split(event)]
        data = b"\n".join(value.removeprefix(b" ") for name, _, value in fields if name == b"data")
        if not data:
            return
        try:
            body = json.loads(data)
        except (ValueError, RecursionError):
            body = None
        status = _refused_with(body)
        if status is not None:
            self.refusal = (status, data)
        else:
            self.committed = not _generates_nothing(body)


def _refused_with(body: Any) -> int | None:
    """The status of a refusal in an event; None when the event is none."""
    error = body.get("error") if isinstance(body, dict) else None
    if not isinstance(error, dict):
        return None
    words = " ".join(str(error.get(name, "")) for name in ("code", "type"))
    if error.get("code") == 429 or _REFUSED.search(words):
        return 429
    return 503 if error.get("code") in (503, 529) or _OVERLOADED.search(words) else None


def _generates_nothing(body: Any) -> bool:
    if not isinstance(body, dict) or body.get("error"):
        return False
    if isinstance(body.get("type"), str):
        return body["type"] in _NOTHING_YET
    choices = body.get("choices")
    return isinstance(choices, list) and all(_is_empty(choice) for choice in choices)


def _is_empty(choice: Any) -> bool:
    if not isinstance(choice, dict) or choice.get("finish_reason") or choice.get("text"):
        return False
    delta = choice.get("delta", {})
    return isinstance(delta, dict) and not any(value for name, value in delta.items() if name != "role")
