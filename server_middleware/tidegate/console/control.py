"""The one thing that can be changed from outside: the mode.

    curl -X PUT -H "Authorization: Bearer $TOKEN" http://127.0.0.1:8000/tidegate/mode -d shadow

Law of this file: only the admin token switches the mode, from this machine too, since a proxy here may
make a stranger look local; without a token set the switch is off. No web page switches it: a request
that carries an `Origin` is refused, whatever it carries besides.
"""

from __future__ import annotations

from collections.abc import Callable

from tidegate.asgi.types import Receive, Scope, Send, first_header
from tidegate.console.access import Access, access_of, has_token
from tidegate.console.options import ConsoleOptions

MODES = ("enforce", "shadow", "off")
MAX_BODY_BYTES = 256
NO_TOKEN_SET = (
    "The mode is switched with the admin token only, and none is set. Set console.admin_token "
    "(TIDEGATE_CONSOLE__ADMIN_TOKEN) or mode (TIDEGATE_MODE), and restart."
)


class Control:
    """Answers `PUT <console path>/mode`; ask `serves` first.

    Args:
        options: of the console; to strangers neither exists.
        set_mode: called with one of `MODES` and the address of who switches; returns what to answer.
    """

    def __init__(self, options: ConsoleOptions, set_mode: Callable[[str, str], str]) -> None:
        self._options = options
        self._set_mode = set_mode

    def serves(self, scope: Scope) -> bool:
        """Whether this HTTP request is for the control and its caller is no stranger."""
        if not self._options.enabled or scope["method"] != "PUT":
            return False
        path = str(scope["path"]).removeprefix(str(scope.get("root_path", "")).rstrip("/"))
        return path == f"{self._options.path}/mode" and access_of(scope, self._options) is not Access.STRANGER

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Switch the mode, or say why not."""
        if self._options.admin_token is None:
            await _answer(send, 403, NO_TOKEN_SET)
            return
        if not has_token(scope, self._options):
            await _answer(send, 401, "Send the admin token: -H 'Authorization: Bearer ...'.")
            return
        if first_header(scope["headers"], b"origin") is not None:
            await _answer(send, 403, "The mode is not switched by web pages; use curl.")
            return
        wish = (await _read(receive)).decode("utf-8", "replace").strip().strip('"')
        if wish not in MODES:
            await _answer(send, 400, f"The body is {wish!r}: send one of {', '.join(MODES)}.")
            return
        await _answer(send, 200, self._set_mode(wish, str((scope.get("client") or ("a Unix socket",))[0])))


async def _read(receive: Receive) -> bytes:
    body = b""
    while len(body) <= MAX_BODY_BYTES:
        message = await receive()
        body += message.get("body", b"")
        if not message.get("more_body", False):
            break
    return body[: MAX_BODY_BYTES + 1]


async def _answer(send: Send, status: int, text: str) -> None:
    body = text.encode() + b"\n"
    headers = [
        (b"content-type", b"text/plain; charset=utf-8"),
        (b"content-length", b"%d" % len(body)),
        (b"cache-control", b"no-store"),
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
