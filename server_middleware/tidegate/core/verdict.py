"""What the bounds say of a candidate: it fits, or which of them bit first.

Law of this file: vocabulary only; `instance` asks the bounds.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple


class Ceiling(NamedTuple):
    """What a class may use: its share, and how it stands to the others."""

    share: float  # of the capacity
    is_lowered: bool = False  # a class above has a higher one, and needs it
    is_top: bool = False  # its own is the highest there is: the others keep a reserve free for it


class Verdict(Enum):
    """Whether it fits, or the bound that bit."""

    FITS = "fits"
    LEVEL = "level"  # above the watermark, stalled or asleep
    ENGINE_QUEUE = "engine_queue"
    SEQUENCES = "sequences"
    PREFILL = "prefill"
    KV = "kv"
    BLIND = "blind"


FITS = Verdict.FITS  # the answer to nearly every question: members are looked up slowly before Python 3.12
