"""From an HTTP request to an `Ask`: who, how much, until when, and whether it was here before.

Law of this file: it composes the readers beside it (identity, body, examine, headers) and decides
nothing. Every figure that leaves it is in tokens, bytes or seconds on the monotonic clock.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NamedTuple

from tidegate.asgi.arrival import Arrival
from tidegate.asgi.body import Body, uncounted
from tidegate.asgi.classify import Dialect
from tidegate.asgi.cost import unparsed
from tidegate.asgi.examine import Examined, Threads, examine
from tidegate.asgi.fields import FieldPolicy, names_priority
from tidegate.asgi.identity import Caller, Resolver
from tidegate.asgi.keepalive import EVENT_STREAMS
from tidegate.asgi.keys import CachedKeys
from tidegate.asgi.media import MediaPrices
from tidegate.asgi.reading import OneBody
from tidegate.asgi.said import Said
from tidegate.asgi.sieve import Sieve
from tidegate.asgi.types import HeaderList, Headers, Message, Scope, content_length, with_content_length
from tidegate.asgi.waiting import WaitingRoom
from tidegate.core.decisions import Ask
from tidegate.settings import Settings

UNBOUNDED_S = 24 * 3600.0
FIRST_BYTE_MARGIN_S = 1.0  # what a caller that bears N s of silence is given for its first byte
_NO_HEADERS: Headers = ()


class Asked(NamedTuple):
    """An ask with what the shell itself needs of the request.

    Args:
        ask: for the gate.
        streams_events: the answer will be server-sent events.
        is_background: the response outlives its request.
        media_items: in the prompt.
        other_tokens: of the prompt, besides media.
    """

    ask: Ask
    streams_events: bool = False
    is_background: bool = False
    media_items: int = 0
    other_tokens: float = 0.0


class AskBuilder:
    """Builds the asks of one middleware."""

    def __init__(
        self, settings: Settings, clock: Callable[[], float], keys: CachedKeys | None = None
    ) -> None:
        self.max_body_bytes = settings.body.max_bytes
        self._body_timeout_s = settings.body.timeout_s
        self.rejects_oversize = settings.body.oversize == "reject"
        self._keeps_alive = settings.keepalive.after_s is not None
        self._media = MediaPrices()
        self._threads = Threads()
        self._fields = settings.fields
        self._fields_of = _policies(settings)
        self._flex_class = settings.identity.flex_class
        self._clock = clock
        self._sieve = Sieve(settings.identity)
        self.asks_about_keys = keys is not None
        self._resolver = Resolver(
            settings.tenant_keys(),
            settings.identity,
            classes=[row.name for row in settings.classes],
            default_class=settings.default_tenant.priority_class,
            keys=keys,
        )

    def renew(self, settings: Settings) -> None:
        """The tenants of these settings are recognised from now on; what was learnt stays.

        Raises:
            ValueError: two tenants share a key; nothing has changed.
        """
        self._resolver.renew(settings.tenant_keys(), settings.default_tenant.priority_class)
        self._fields_of = _policies(settings)

    def lines(self, scope: Scope) -> HeaderList:
        """The header lines that matter here."""
        return self._sieve.lines(scope.get("headers", _NO_HEADERS))

    def recognise(self, arrival: Arrival) -> Caller | None:
        """Who asks, by what is known here; `None`: a configured key is required, and there is none."""
        lines = arrival.lines
        if not lines or (len(lines) == 1 and lines[0][0] == b"content-length"):
            caller = self._resolver.nameless(arrival.scope)
        else:
            caller = self._resolver.resolve(_for_identity(arrival))
        return caller if self._resolver.is_allowed(caller) else None

    async def identify(self, arrival: Arrival) -> Caller | None:
        """As `recognise`, but asks the provider of keys too, where there is one (`asks_about_keys`).

        Raises:
            CannotTell: a configured key is required, and whether this is one cannot be told now.
        """
        caller = await self._resolver.identify(_for_identity(arrival))
        return caller if self._resolver.is_allowed(caller) else None

    @property
    def requires_key(self) -> bool:
        """Whether only callers with a configured key may go on to the app."""
        return self._resolver.requires_key

    def observed(self, caller: Caller, status: int) -> None:
        """The app has answered this caller; keys it accepts become tenants of their own."""
        self._resolver.observed(caller, status)

    def reported(self, asked: Asked, prompt_tokens: int) -> None:
        """The engine has reported the prompt of a request: prices of media are learnt from it."""
        if asked.media_items:
            self._media.observed(asked.ask.model, asked.media_items, prompt_tokens, asked.other_tokens)

    def begin_body(self, arrival: Arrival, held: OneBody | None) -> tuple[Body, Awaitable[Message] | None]:
        """The body as far as it has come, and what is to be awaited by `finish_body`, if anything.

        Args:
            held: told the size of each part. Without it (shadow mode) the body may take its time, as
                without a gate.
        """
        body = Body(arrival.watch.receive, content_length(arrival.lines))
        return body, body.begin(self.max_body_bytes, _counted(held))

    async def finish_body(self, body: Body, waiting: Awaitable[Message], held: OneBody | None) -> None:
        """Read the rest within its bounds.

        Raises:
            BodyTimeout: it did not arrive in time.
            NoRoom: there is none for it.
        """
        timeout_s = self._body_timeout_s if held is not None else UNBOUNDED_S
        await body.finish(
            waiting, self.max_body_bytes, _counted(held), timeout_s=timeout_s, clock=self._clock, held=held
        )

    def build(
        self, room: WaitingRoom, caller: Caller, arrival: Arrival, body: Body, *, changes: bool = True
    ) -> Asked:
        """The ask and what belongs to it; what the field policy cuts is cut in `body` and in the scope.

        Args:
            changes: `False` (shadow mode): nothing is cut.

        Raises:
            FieldProblem: the request asks for something that is not allowed here.
        """
        policy = self._policy(caller)
        if body.complete:
            examined = examine(body.data, arrival.route, policy)
        else:
            examined = Examined(unparsed(body.size_bytes))
        return self._built(room, caller, arrival, body, examined, policy if changes else None)

    async def build_off_loop(
        self, room: WaitingRoom, caller: Caller, arrival: Arrival, body: Body, *, changes: bool = True
    ) -> Asked:
        """As `build`, for a body so large that it is to be examined in a thread."""
        if not body.complete:
            return self.build(room, caller, arrival, body, changes=changes)
        policy = self._policy(caller)
        examined = await self._threads.examine(body.data, arrival.route, policy)
        return self._built(room, caller, arrival, body, examined, policy if changes else None)

    def _policy(self, caller: Caller) -> FieldPolicy:
        return self._fields_of.get(caller.tenant, self._fields)

    def _built(
        self,
        room: WaitingRoom,
        caller: Caller,
        arrival: Arrival,
        body: Body,
        examined: Examined,
        policy: FieldPolicy | None,
    ) -> Asked:
        route, words, cost = arrival.route, arrival.said, examined.cost
        digest = body.digest() if words.was_here_before and body.complete else None
        if policy is not None:
            _change(arrival, body, examined.data, policy)
        if cost.service_tier == "flex":
            caller = self._resolver.lowered(caller, self._flex_class)
        tenant, model = caller.tenant, cost.model or ""
        text = room.estimate_prompt_tokens(tenant, model, cost.ascii_bytes, cost.other_bytes)
        other = cost.token_ids + text
        media = cost.media_items * self._media.tokens_per_item(model) if cost.media_items else 0.0
        streams = cost.stream or route.dialect is Dialect.OPENAI_REALTIME
        streams_events = cost.stream and route.dialect in EVENT_STREAMS
        latest_start_at, deadline_at = self._instants(words, streams, streams_events)
        # Other parts of a prompt would be learnt as if they were text.
        is_text = not (cost.token_ids or cost.media_items)
        ask = Ask(
            ticket=room.next_ticket(),
            tenant=tenant,
            priority_class=caller.priority_class,
            prompt_tokens=other + media,
            prompt_tokens_floor=cost.prompt_tokens_floor,
            max_output_tokens=cost.max_output_tokens,
            sequences=cost.sequences,
            generates=route.generates,
            length_key=(model, cost.length_hint, tenant),
            body_bytes=body.size_bytes,
            latest_start_at=latest_start_at,
            deadline_at=deadline_at,
            identity=words.key or (None if digest is None else digest.hex()),
            digest=digest,
            is_keyed=words.key is not None,
            attempt=words.attempt,
            end_user=caller.end_user,
            session=cost.session,
            instance=words.rank,
            streams=streams,
            model=model,
            ascii_bytes=cost.ascii_bytes if is_text else 0,
            other_bytes=cost.other_bytes if is_text else 0,
        )
        return Asked(ask, streams_events, cost.background, cost.media_items, other)

    def _instants(
        self, words: Said, streams: bool, streams_events: bool
    ) -> tuple[float | None, float | None]:
        """(latest start, deadline of the whole answer), as the caller's patience asks for.

        The SDKs' read time-out bounds silence: until the first byte of a stream, or of a whole answer.
        Comments that keep a stream alive end the silence.
        """
        wait_s, silence_s = words.wait_s, words.silence_s
        if wait_s is None and silence_s is None:
            return None, None
        now = self._clock()
        whole_s = wait_s if streams else _least(wait_s, silence_s)
        first_s = silence_s if streams and not (self._keeps_alive and streams_events) else None
        return (
            None if first_s is None else now + max(0.0, first_s - FIRST_BYTE_MARGIN_S),
            None if whole_s is None else now + whole_s,
        )


def _policies(settings: Settings) -> dict[str, FieldPolicy]:
    return {row.name: row.fields for row in settings.tenants if row.fields is not None}


def _for_identity(arrival: Arrival) -> Scope:
    """Of the scope, what tells who asks, and where."""
    scope = arrival.scope
    return {"client": scope.get("client"), "path": scope.get("path", ""), "headers": arrival.lines}


def _counted(held: OneBody | None) -> Callable[[int], None]:
    return uncounted if held is None else held.arrived


def _change(arrival: Arrival, body: Body, data: bytes | None, policy: FieldPolicy) -> None:
    """Put what the policy left of the request in its place."""
    if data is None and not names_priority(arrival.lines):
        return
    given: Headers = arrival.scope.get("headers", _NO_HEADERS)
    headers = policy.headers(given) or given
    if data is not None:
        body.replace_data(data)
        headers = with_content_length(headers, len(data))
    if headers is not given:  # a scope belongs to the server and is not changed
        arrival.scope = {**arrival.scope, "headers": headers}


def _least(one: float | None, other: float | None) -> float | None:
    given = [value for value in (one, other) if value is not None]
    return min(given, default=None)
