"""From an HTTP request to an `Ask`: who, how much, until when, and whether it was here before.

Law of this file: it composes the readers beside it (callers, body, examine, said) and decides nothing.
Every figure that leaves it is in tokens, bytes or seconds on the monotonic clock.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from tidegate.asgi.arrival import Arrival
from tidegate.asgi.body import Body
from tidegate.asgi.callers import Callers
from tidegate.asgi.classify import Dialect
from tidegate.asgi.conversations import Conversations
from tidegate.asgi.cost import unparsed
from tidegate.asgi.examine import Examined, Threads, examine
from tidegate.asgi.fields import FieldPolicy, names_priority
from tidegate.asgi.identity import Caller
from tidegate.asgi.keepalive import EVENT_STREAMS
from tidegate.asgi.media import MediaPrices
from tidegate.asgi.types import Headers, with_content_length
from tidegate.asgi.waiting import WaitingRoom
from tidegate.core.decisions import Ask
from tidegate.settings import Settings

_NO_HEADERS: Headers = ()


class Asked(NamedTuple):
    """An ask with what the shell itself needs of the request.

    Args:
        ask: for the gate.
        streams_events: the answer will be server-sent events.
        is_background: the response outlives its request.
        media_items: in the prompt, where their price may be learnt.
        other_tokens: of the prompt, besides media.
    """

    ask: Ask
    streams_events: bool = False
    is_background: bool = False
    media_items: int = 0
    other_tokens: float = 0.0


class AskBuilder:
    """Builds the asks of one middleware.

    Args:
        settings: with the field policies, and whether comments keep streams alive.
        clock: monotonic seconds.
        room: numbers the requests, and knows how many tokens a text has.
        callers: may be lowered by what a body says.
    """

    def __init__(
        self, settings: Settings, clock: Callable[[], float], room: WaitingRoom, callers: Callers
    ) -> None:
        self._keeps_alive = settings.keepalive.after_s is not None
        self._media = MediaPrices()
        self._conversations = Conversations()
        self._threads = Threads()
        self._fields = settings.fields
        self._fields_of = _policies(settings)
        self._clock = clock
        self._room = room
        self._callers = callers

    def renew(self, settings: Settings) -> None:
        """The field policies of these settings' tenants hold from now on."""
        self._fields_of = _policies(settings)

    def reported(
        self, asked: Asked, prompt_tokens: int, output_tokens: int | None, response_id: str | None
    ) -> None:
        """The engine has reported on a request: prices of media and lengths of conversations are learnt."""
        if response_id is not None:
            self._conversations.observed(response_id, prompt_tokens + (output_tokens or 0))
        if asked.media_items:
            self._media.observed(asked.ask.model, asked.media_items, prompt_tokens, asked.other_tokens)

    def build(self, caller: Caller, arrival: Arrival, body: Body, *, changes: bool = True) -> Asked:
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
        return self._built(caller, arrival, body, examined, policy if changes else None)

    async def build_off_loop(
        self, caller: Caller, arrival: Arrival, body: Body, *, changes: bool = True
    ) -> Asked:
        """As `build`, for a complete body so large that it is to be examined in a thread."""
        policy = self._policy(caller)
        examined = await self._threads.examine(body.data, arrival.route, policy)
        return self._built(caller, arrival, body, examined, policy if changes else None)

    def _policy(self, caller: Caller) -> FieldPolicy:
        return self._fields_of.get(caller.tenant, self._fields)

    def _built(
        self,
        caller: Caller,
        arrival: Arrival,
        body: Body,
        examined: Examined,
        policy: FieldPolicy | None,
    ) -> Asked:
        room, route, words, cost = self._room, arrival.route, arrival.said, examined.cost
        digest = body.digest() if words.was_here_before and body.complete else None
        if policy is not None:
            _change(arrival, body, examined.data, policy)
        caller = self._callers.lowered_by(cost.service_tier, caller)
        tenant, model = caller.tenant, cost.model or ""
        text = room.estimate_prompt_tokens(tenant, model, cost.ascii_bytes, cost.other_bytes)
        other = cost.token_ids + text + self._conversations.tokens_before(cost.response_before)
        media = cost.media_items * self._media.tokens_per_item(model) if cost.media_items else 0.0
        streams = cost.stream or route.dialect is Dialect.OPENAI_REALTIME
        streams_events = cost.stream and route.dialect in EVENT_STREAMS
        is_silent = not (self._keeps_alive and streams_events)
        latest_start_at, deadline_at = words.instants(self._clock, streams=streams, is_silent=is_silent)
        # Other parts of a prompt would be learnt as if they were text.
        is_text = not (cost.token_ids or cost.media_items or cost.continues)
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
        media_items = 0 if cost.continues else cost.media_items  # what was kept is no price of theirs
        return Asked(ask, streams_events, cost.background, media_items, other)


def _policies(settings: Settings) -> dict[str, FieldPolicy]:
    return {row.name: row.fields for row in settings.tenants if row.fields is not None}


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
