"""What can be changed from outside: the mode, and the tenants by reading the settings anew.

    curl -X PUT -H "Authorization: Bearer $TOKEN" http://127.0.0.1:8000/tidegate/mode -d shadow
    curl -X POST -H "Authorization: Bearer $TOKEN" http://127.0.0.1:8000/tidegate/reload

Law of this file: only the admin token changes anything, from this machine too, since a proxy here may
make a stranger look local; without a token set nothing is changed. No web page changes anything: a request
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
    "This takes the admin token, and none is set. Set console.admin_token "
    "(TIDEGATE_CONSOLE__ADMIN_TOKEN), or change the settings themselves (the mode by TIDEGATE_MODE), and "
    "restart."
)

NOT_THE_TOKEN = (
    "The admin token is missing, or not the one that console.admin_token had at start: "
    "-H 'Authorization: Bearer ...'."
)


class Control:
    """Answers `PUT <console path>/mode` and `POST <console path>/reload`; ask `serves` first.

    Args:
        options: of the console; to strangers neither exists.
        set_mode: called with one of `MODES` and the address of who switches; returns what to answer.
        reload: called with the address of who asks; returns the status and the text of the answer.
    """

    def __init__(
        self,
        options: ConsoleOptions,
        set_mode: Callable[[str, str], str],
        reload: Callable[[str], tuple[int, str]],
    ) -> None:
        self._options = options
        self._set_mode = set_mode
        self._reload = reload
        self._paths = {"PUT": f"{options.path}/mode", "POST": f"{options.path}/reload"}

    def serves(self, scope: Scope) -> bool:
        """Whether this HTTP request is for the control and its caller is no stranger."""
        ours = self._paths.get(scope["method"])
        if not self._options.enabled or ours is None:
            return False
        path = str(scope["path"]).removeprefix(str(scope.get("root_path", "")).rstrip("/"))
        return path == ours and access_of(scope, self._options) is not Access.STRANGER

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Do it, or say why not."""
        if self._options.admin_token is None:
            await _answer(send, 403, NO_TOKEN_SET)
            return
        if not has_token(scope, self._options):
            await _answer(send, 401, NOT_THE_TOKEN)
            return
        if first_header(scope["headers"], b"origin") is not None:
            await _answer(send, 403, "Web pages change nothing here; use curl.")
            return
        peer = str((scope.get("client") or ("a Unix socket",))[0])
        wish = (await _read(receive)).decode("utf-8", "replace").strip().strip('"')
        if scope["method"] == "POST":
            await _answer(send, *self._reload(peer))
        elif wish not in MODES:
            await _answer(send, 400, f"The body is {wish!r}: send one of {', '.join(MODES)}.")
        else:
            await _answer(send, 200, self._set_mode(wish, peer))


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
