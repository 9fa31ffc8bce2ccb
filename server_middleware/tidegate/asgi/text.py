"""The size of text that is not all ASCII.

Law of this file: ASCII and the rest are told apart, since Chinese takes a token or more for each character.
"""

from __future__ import annotations


def mixed_bytes(text: str) -> tuple[int, int]:
    """(ASCII bytes, other bytes) of the text in UTF-8; lone surrogates, which JSON allows, count too."""
    ascii_bytes = len(text.encode("ascii", "ignore"))
    return ascii_bytes, len(text.encode("utf-8", "surrogatepass")) - ascii_bytes
