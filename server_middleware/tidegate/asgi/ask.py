"""From an HTTP request to an `Ask`: who, how much, until when, and whether it was here before.

Law of this file: it composes the readers beside it (identity, body, examine, headers) and decides
nothing. Every figure that leaves it is in tokens, bytes or seconds on the monotonic clock.
"""

from __future__ import annotations

from collections.abc import Callable

from tidegate.asgi.body import Body, read_body
from tidegate.asgi.classify import Dialect, Route
from tidegate.asgi.cost import TOKENS_PER_MEDIA_ITEM, Cost, unparsed
from tidegate.asgi.examine import Examined, examine_off_loop
from tidegate.asgi.headers import parse_attempt, parse_idempotency_key, parse_prefer_wait, parse_read_timeout
from tidegate.asgi.identity import Caller, Resolver
from tidegate.asgi.types import Headers, Receive, Scope, with_content_length
from tidegate.asgi.waiting import WaitingRoom
from tidegate.core.decisions import Ask
from tidegate.settings import Settings

FIRST_BYTE_MARGIN_S = 1.0  # what a caller that bears N s of silence is given for its first byte
_NO_HEADERS: Headers = ()


class AskBuilder:
    """Builds the asks of one middleware."""

    def __init__(self, settings: Settings, clock: Callable[[], float]) -> None:
        self._body = settings.body
        self._fields = settings.fields
        self._flex_class = settings.identity.flex_class
        self._clock = clock
        self._resolver = Resolver(
            settings.tenant_keys(),
            settings.identity,
            classes=[row.name for row in settings.classes],
            default_class=settings.default_tenant.priority_class,
        )

    def identify(self, scope: Scope) -> Caller | None:
        """Who asks; `None`: the caller has no configured key, and one is required."""
        caller = self._resolver.resolve(scope)
        return caller if self._resolver.is_allowed(caller) else None

    def observed(self, caller: Caller, status: int) -> None:
        """The app has answered this caller; keys it accepts become tenants of their own."""
        self._resolver.observed(caller, status)

    def declares_retry(self, scope: Scope) -> bool:
        """Whether the caller says that this request was here before, so that its place may be kept."""
        headers = scope.get("headers", _NO_HEADERS)
        return parse_attempt(headers) > 1 or parse_idempotency_key(headers) is not None

    async def read_body(self, scope: Scope, receive: Receive) -> Body:
        """Read the body within its bounds.

        Raises:
            BodyTimeout: it did not arrive in time.
        """
        return await read_body(
            receive,
            headers=scope.get("headers", _NO_HEADERS),
            max_bytes=self._body.max_bytes,
            timeout_s=self._body.timeout_s,
            clock=self._clock,
        )

    async def build(
        self, room: WaitingRoom, caller: Caller, scope: Scope, route: Route, body: Body
    ) -> tuple[Ask, Scope]:
        """The ask, and the scope for the app: what the field policy cuts is cut there and in `body`.

        Raises:
            FieldProblem: the request asks for something that is not allowed here.
        """
        given: Headers = scope.get("headers", _NO_HEADERS)
        headers = self._fields.headers(given) or given
        digest = body.digest() if body.complete and self.declares_retry(scope) else None
        examined = await self._examined(route, body)
        if examined.data is not None:
            body.replace_data(examined.data)
            headers = with_content_length(headers, len(examined.data))
        if headers is not given:
            scope = {**scope, "headers": headers}  # a scope belongs to the server and is not changed
        cost = examined.cost
        if cost.service_tier == "flex":
            caller = self._resolver.lowered(caller, self._flex_class)
        return self._ask(room, caller, scope, route, cost, body.size_bytes, digest), scope

    async def _examined(self, route: Route, body: Body) -> Examined:
        if not body.complete:
            return Examined(unparsed(body.size_bytes))
        return await examine_off_loop(body.data, route, self._fields)

    def _ask(
        self,
        room: WaitingRoom,
        caller: Caller,
        scope: Scope,
        route: Route,
        cost: Cost,
        body_bytes: int,
        digest: bytes | None,
    ) -> Ask:
        headers = scope.get("headers", _NO_HEADERS)
        now, attempt = self._clock(), parse_attempt(headers)
        key = parse_idempotency_key(headers)
        tenant, model = _tenant(caller), cost.model or ""
        text = room.estimate_prompt_tokens(tenant, model, cost.ascii_bytes, cost.other_bytes)
        wait_s, silence_s = parse_prefer_wait(headers), parse_read_timeout(headers)
        streams = cost.stream or route.dialect is Dialect.OPENAI_REALTIME
        # The read time-out bounds silence: until the first byte of a stream, or of the whole answer.
        whole_s = wait_s if streams else _least(wait_s, silence_s)
        first_s = silence_s if streams else None
        return Ask(
            ticket=room.next_ticket(),
            tenant=tenant,
            priority_class=caller.priority_class,
            prompt_tokens=cost.token_ids + text + cost.media_items * TOKENS_PER_MEDIA_ITEM,
            prompt_tokens_floor=cost.prompt_tokens_floor,
            max_output_tokens=cost.max_output_tokens,
            sequences=cost.sequences,
            generates=route.generates,
            length_key=(model, cost.length_hint),
            body_bytes=body_bytes,
            latest_start_at=None if first_s is None else now + max(0.0, first_s - FIRST_BYTE_MARGIN_S),
            deadline_at=None if whole_s is None else now + whole_s,
            identity=key or (digest.hex() if digest is not None and attempt > 1 else None),
            digest=digest if key is not None or attempt > 1 else None,
            is_keyed=key is not None,
            attempt=attempt,
            session=cost.session,
            streams=streams,
            model=model,
            # Other parts of a prompt would be learnt as if they were text.
            ascii_bytes=0 if cost.token_ids or cost.media_items else cost.ascii_bytes,
            other_bytes=0 if cost.token_ids or cost.media_items else cost.other_bytes,
        )


def _tenant(caller: Caller) -> str:
    """The name under which the core keeps this caller; end users share their service's key, fairly."""
    return caller.tenant if caller.end_user is None else f"{caller.tenant}/{caller.end_user}"


def _least(one: float | None, other: float | None) -> float | None:
    given = [value for value in (one, other) if value is not None]
    return min(given, default=None)
