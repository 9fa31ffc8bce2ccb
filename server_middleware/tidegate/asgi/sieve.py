"""The header lines of a request that anything of ours reads, picked out once.

Law of this file: whoever looks for a header in picked lines has its name here. Clients send a dozen
headers and more, and most say nothing to a gate; looking through all of them for each question costs
more than the question.
"""

from __future__ import annotations

from tidegate.asgi.credentials import NAMES as CREDENTIALS
from tidegate.asgi.fields import PRIORITY_HEADERS
from tidegate.asgi.identity import PRIORITY_HEADER, IdentityOptions
from tidegate.asgi.said import READ_HERE
from tidegate.asgi.types import HeaderList, Headers

_NAMES = CREDENTIALS | PRIORITY_HEADERS | READ_HERE | {PRIORITY_HEADER, b"content-length", b"x-forwarded-for"}


class Sieve:
    """Picks lines by name.

    Args:
        options: may name further headers.
    """

    __slots__ = ("_names",)

    def __init__(self, options: IdentityOptions) -> None:
        given = (options.tenant_header, options.end_user_header)
        self._names = _NAMES | {name.lower().encode("ascii") for name in given if name is not None}

    def lines(self, headers: Headers) -> HeaderList:
        """Those of the lines, in order."""
        names = self._names
        return [line for line in headers if line[0].lower() in names]
