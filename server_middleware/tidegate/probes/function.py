"""A plain callable as a source.

Law of this file: whatever a caller hands over as `probe` becomes a `Probe` here or is refused with a
sentence. A synchronous callable runs beside the event loop, for it may well be a blocking HTTP call.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias, cast

from tidegate.core.reading import Reading
from tidegate.probes.offload import Offload
from tidegate.probes.protocol import Probe, ProbeError, as_readings

Answer: TypeAlias = "Reading | Sequence[Reading] | float"
ProbeLike: TypeAlias = "Probe | Callable[[], Answer] | Callable[[], Awaitable[Answer]]"


def as_probe(source: ProbeLike) -> Probe:
    """Return `source` as a `Probe`.

    Accepts a `Probe`, or a callable without arguments, synchronous or not, that returns a `Reading`,
    a list of them, or a bare KV level in 0..1.

    Raises:
        TypeError: it is neither.
    """
    read = getattr(source, "read", None)
    if not isinstance(source, type) and callable(read):
        if inspect.iscoroutinefunction(read):
            return cast("Probe", source)
        return FunctionProbe(read)
    if callable(source) and not isinstance(source, type):
        return FunctionProbe(cast("Callable[[], object]", source))
    raise TypeError(
        f"probe is {source!r}, expected an object with `async def read()` or a callable without arguments "
        "that returns a Reading, a list of them, or a level in 0..1 (pass an instance, not a class)."
    )


class FunctionProbe:
    """A callable as a probe; see `as_probe`."""

    def __init__(self, call: Callable[[], object], *, instance: str = "default") -> None:
        self.instance = instance
        self._call = call
        self._is_async = inspect.iscoroutinefunction(call) or inspect.iscoroutinefunction(
            getattr(call, "__call__", None)  # noqa: B004 - an object whose __call__ is a coroutine function
        )
        self._offload = Offload(call, f"tidegate probe {instance}")

    async def read(self) -> Sequence[Reading]:
        """Call it once.

        Raises:
            ProbeError: it answered with something else than a level or readings, or still hangs.
            InvalidReading: the level is NaN or outside 0..1.
        """
        answer = self._call() if self._is_async else await self._offload.run()
        if inspect.isawaitable(answer):
            answer = await answer
        return self._readings(answer)

    def _readings(self, answer: object) -> Sequence[Reading]:
        if isinstance(answer, bool) or answer is None or isinstance(answer, (str, bytes)):
            raise ProbeError(
                f"the probe returned {answer!r}, expected a Reading, a list of them, or a level in 0..1."
            )
        if isinstance(answer, (int, float)):
            return [Reading(kv_usage=float(answer), instance=self.instance)]
        if isinstance(answer, (Reading, Sequence)):
            return as_readings(answer)
        raise ProbeError(
            f"the probe returned {type(answer).__name__}, expected a Reading, a list of them, or a level."
        )
