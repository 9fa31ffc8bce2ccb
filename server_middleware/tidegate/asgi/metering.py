"""What an answer turned out to be: its output counted as it passes, the engine's own report at its end.

Law of this file: an error in here ends the counting and never the stream; what is set aside is bounded.
"""

from __future__ import annotations

from collections.abc import Callable

from tidegate.asgi.ask import Asked
from tidegate.asgi.background import ResponseReader
from tidegate.asgi.classify import Route
from tidegate.asgi.stream import OutputCounter
from tidegate.core.decisions import Ending, Settlement

COUNT_AT_CHUNKS, COUNT_AT_BYTES = 64, 4096  # no more is set aside than this before it is counted


class Meter:
    """Counts one answer.

    Args:
        route, asked: of the request.
        reported: called with the prompt tokens that the engine reports.
        on_fault: called with (where, error).
    """

    def __init__(
        self,
        route: Route,
        asked: Asked,
        reported: Callable[[Asked, int], None],
        on_fault: Callable[[str, Exception], None],
    ) -> None:
        self._asked = asked
        self._reported = reported
        self._on_fault = on_fault
        self._counter: OutputCounter | None = OutputCounter(route, asked.ask.sequences)
        self._uncounted: list[bytes] = []
        self.response = ResponseReader() if asked.is_background else None
        self.output_tokens = 0.0

    def take(self, chunk: bytes) -> None:
        """Set a chunk aside: counting several at once costs half as much."""
        self._uncounted.append(chunk)
        if len(self._uncounted) >= COUNT_AT_CHUNKS or len(chunk) >= COUNT_AT_BYTES:
            self.count()

    def count(self) -> None:
        """Bring `output_tokens` up to what has passed."""
        chunks, self._uncounted = self._uncounted, []
        if self._counter is None or not chunks:
            return
        try:
            data = b"".join(chunks)
            self.output_tokens = self._counter.feed(data)
            if self.response is not None:
                self.response.feed(data)
        except Exception as error:  # noqa: BLE001 - the stream goes on without being counted
            self._counter = None
            self._on_fault("stream", error)

    def settlement(self, ending: Ending) -> Settlement:
        """What it cost, as far as it is known."""
        try:
            usage = self._counter.usage if self._counter is not None else None
            is_cut = self._counter is not None and self._counter.finished_by_length
            prompt, output = usage if usage is not None else (None, None)
            if prompt is not None:
                self._reported(self._asked, prompt)
        except Exception as error:  # noqa: BLE001 - the lease ends all the same
            self._on_fault("usage", error)
            return Settlement(ending=ending)
        if output is None and ending is Ending.COMPLETED and self.output_tokens:
            output = round(self.output_tokens)
        return Settlement(
            ending=ending, prompt_tokens=prompt, output_tokens=output, finished_by_length=is_cut
        )
