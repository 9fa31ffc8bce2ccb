"""What every source of the KV level looks like.

Law of this file: a source answers with readings or raises. It never answers with a guess: a figure it
could not obtain is an exception (`ProbeError`), because an unknown level must never pass for 0 %.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from tidegate.core.reading import Reading


class ProbeError(Exception):
    """The source could not be read; the message says what was tried and what would help."""


@runtime_checkable
class Probe(Protocol):
    """A source of readings.

    Optional attributes a poller looks for: `instance` (the name failures are reported under),
    `parts` (independent sources, each polled on its own) and `aclose()`.
    """

    async def read(self) -> Reading | Sequence[Reading]:
        """Read once.

        Raises:
            ProbeError: nothing usable was obtained.
            tidegate.core.reading.InvalidReading: a figure was obtained that cannot be true.
        """
        ...


class ProbeGroup:
    """Several independent sources as one.

    A poller polls the `parts` one by one, so that one hanging instance delays no other. `read()`,
    for callers that want a single round, answers with what it got and raises only when nothing came.
    """

    def __init__(self, parts: Sequence[Probe]) -> None:
        if not parts:
            raise ValueError("parts is empty, expected at least one probe.")
        self.parts = tuple(parts)

    async def read(self) -> Sequence[Reading]:
        """Read all parts at once.

        Raises:
            ProbeError: no part could be read.
        """
        answers = await asyncio.gather(*(_read(part) for part in self.parts))
        readings = [reading for answer in answers if not isinstance(answer, Exception) for reading in answer]
        if not readings:
            raise ProbeError("; ".join(map(str, answers)))
        return readings

    async def aclose(self) -> None:
        """Close every part that can be closed."""
        for part in self.parts:
            await close(part)


async def _read(part: Probe) -> list[Reading] | Exception:
    try:
        return as_readings(await part.read())
    except Exception as error:  # noqa: BLE001 - one part's failure, whatever it is, does not hide the others
        return error


def as_readings(result: Reading | Sequence[Reading]) -> list[Reading]:
    """Return one reading or many as a list.

    Raises:
        ProbeError: there is none, or something else than a reading is among them.
    """
    readings = [result] if isinstance(result, Reading) else list(result)
    if not readings:
        raise ProbeError("the probe answered with an empty list: no reading at all is a failure.")
    for reading in readings:
        if not isinstance(reading, Reading):
            raise ProbeError(f"the probe answered with {type(reading).__name__}, expected a Reading.")
    return readings


def shown(url: str) -> str:
    """An address as it may be logged: without its query and its user, which may hold a secret."""
    scheme, separator, rest = url.partition("://")
    return scheme + separator + rest.partition("?")[0].rpartition("@")[2]


async def close(probe: Probe) -> None:
    """Close a probe if it can be closed."""
    aclose = getattr(probe, "aclose", None)
    if aclose is not None:
        await aclose()
