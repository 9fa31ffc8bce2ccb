"""What an answer turned out to be: its output counted as it passes, the engine's own report at its end.

Law of this file: an error in here ends the counting and never the stream; what is set aside is bounded.
"""

from __future__ import annotations

from collections.abc import Callable

from tidegate.asgi.ask import Asked
from tidegate.asgi.background import ResponseReader, Seen
from tidegate.asgi.classify import Dialect, Route
from tidegate.asgi.readers_fast import read_answer
from tidegate.asgi.stream import OutputCounter
from tidegate.core.decisions import Ending, Settlement

MOST_CHUNKS, MOST_BYTES = 256, 64 * 1024  # no more is set aside than this before it is counted
_OPENAI = frozenset({Dialect.OPENAI_CHAT, Dialect.OPENAI_COMPLETIONS})


class Meter:
    """Counts one answer. Whoever passes a chunk on puts it into `uncounted`: that is all it costs.

    Args:
        route, asked: of the request.
        reported: called with the prompt and output tokens that the engine reports, and the answer's id.
        on_fault: called with (where, error).
    """

    __slots__ = (
        "_asked",
        "_counter",
        "_is_broken",
        "_on_fault",
        "_reported",
        "_route",
        "output_tokens",
        "response",
        "uncounted",
    )

    def __init__(
        self,
        route: Route,
        asked: Asked,
        reported: Callable[[Asked, int, int | None, str | None], None],
        on_fault: Callable[[str, Exception], None],
    ) -> None:
        self._route = route
        self._asked = asked
        self._reported = reported
        self._on_fault = on_fault
        self._counter: OutputCounter | None = None
        self._is_broken = False
        self.uncounted: list[bytes] = []
        self.response = ResponseReader() if asked.is_background else None
        self.output_tokens = 0.0

    def count(self) -> None:
        """Bring `output_tokens` up to what has passed."""
        chunks = self.uncounted.copy()
        self.uncounted.clear()
        if self._is_broken or not chunks:
            return
        try:
            if self._counter is None:
                self._counter = OutputCounter(self._route, self._asked.ask.sequences)
            self.output_tokens = self._counter.feed(*chunks)
            if self.response is not None:
                self.response.feed(b"".join(chunks))
        except Exception as error:  # noqa: BLE001 - the stream goes on without being counted
            self._is_broken = True
            self._on_fault("stream", error)

    def settlement(self, ending: Ending) -> Settlement:
        """What it cost, as far as it is known."""
        try:
            prompt, output, is_cut = self._found()
            if prompt is not None:
                name = None if self._counter is None else self._counter.response_id
                self._reported(self._asked, prompt, output, name)
        except Exception as error:  # noqa: BLE001 - the lease ends all the same
            self._on_fault("usage", error)
            return Settlement(ending=ending)
        if output is None and ending is Ending.COMPLETED and self.output_tokens:
            output = round(self.output_tokens)
        return Settlement(
            ending=ending, prompt_tokens=prompt, output_tokens=output, finished_by_length=is_cut
        )

    def drop(self) -> None:
        """Keep nothing of the answer, which repeats its request: the lease may be held for long."""
        self._counter = None
        if self.response is not None:
            self.response.drop()

    def seen_later(self, seen: Seen) -> Settlement:
        """What a response cost whose end was seen in another answer."""
        name = None if self.response is None else self.response.response_id
        try:
            if seen.prompt_tokens is not None:
                self._reported(self._asked, seen.prompt_tokens, seen.output_tokens, name)
        except Exception as error:  # noqa: BLE001 - as there; the other answer is not to suffer from it
            self._on_fault("usage", error)
        return Settlement(
            ending=seen.ending or Ending.ABANDONED,
            prompt_tokens=seen.prompt_tokens,
            output_tokens=seen.output_tokens,
        )

    def _found(self) -> tuple[int | None, int | None, bool]:
        """(prompt tokens, output tokens, whether the bound cut it off)."""
        if self._counter is None and len(self.uncounted) == 1 and self._route.dialect in _OPENAI:
            report = read_answer(self.uncounted[0])
            if report is not None:
                self.uncounted.clear()
                self.output_tokens = float(report.output_tokens)
                return report
        self.count()
        counter = self._counter
        if counter is None or self._is_broken:
            return None, None, False
        return *(counter.usage or (None, None)), counter.finished_by_length
