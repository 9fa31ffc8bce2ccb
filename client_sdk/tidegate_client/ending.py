"""How a call whose refusal stands ends for its caller.

Law: a typed error for whoever calls an HTTP library; the answer itself, marked as final, for an SDK that
makes an error of its own from it. Either way the caller learns what the server asked for.
"""

from __future__ import annotations

import datetime as dt
import math
from typing import Any

from .call import Call
from .core.decision import GiveUp
from .core.refusal import NO_REFUSAL
from .errors import RateLimited

EXTENSION = "tidegate"
"""Key of the RateLimited error among the extensions of a response that is returned in its stead."""


def rate_limited(error: BaseException) -> RateLimited | None:
    """The RateLimited behind an SDK's own error (`openai.RateLimitError` and the like), None when there is
    none.
    """
    if isinstance(error, RateLimited):
        return error
    extensions = getattr(getattr(error, "response", None), "extensions", None)
    found = extensions.get(EXTENSION) if isinstance(extensions, dict) else None
    return found if isinstance(found, RateLimited) else None


def ended(call: Call, response: Any) -> Any:
    """The last answer as the caller gets it; None as `response` when nothing was sent.

    Raises:
        RateLimited: the refusal stands and this caller gets errors.
    """
    if not isinstance(call.decision, GiveUp):
        return response
    sent = call.last_response if response is None else response
    response = _refused_here(call, call.decision) if sent is None else sent
    response.request = call.request
    error = _error(call, response, call.decision)
    if not call.setup.library.in_memory:
        response.elapsed = dt.timedelta(seconds=call.setup.timebase.monotonic() - call.started)
    if not _wants_response(call) or (call.setup.library.in_memory and sent is None):
        try:
            raise error
        finally:
            del error  # else the error holds this frame, and this frame the error, until the collector comes
    # The SDK on top would spend its own attempts on a refusal that has been judged already.
    response.headers["x-should-retry"] = "false"
    response.extensions = {**response.extensions, EXTENSION: error}
    return response


def _wants_response(call: Call) -> bool:
    chosen = call.policy.on_give_up
    return chosen == "response" or (chosen == "auto" and "x-stainless-lang" in call.request.headers)


def _error(call: Call, response: Any, decision: GiveUp) -> RateLimited:
    refusal = call.answered.refusal if call.answered is not None else NO_REFUSAL
    error: RateLimited = call.setup.library.rate_limited(
        why=decision.why,
        retry_after=decision.wait_s,
        wall_now=call.setup.timebase.wall(),
        reason=refusal.reason or call.origin.reason,
        scope=refusal.scope,
        message=refusal.message,
        response=response,
        attempts=call.attempt,
    )
    error.request = call.request  # type: ignore[attr-defined]  # the HTTPStatusError of its library has one
    return error


def _refused_here(call: Call, decision: GiveUp) -> Any:
    """An answer in the server's stead: nothing was sent, since it wants quiet or has been refusing most
    calls.
    """
    wait_s = None if decision.wait_s is None else math.ceil(decision.wait_s)
    message = f"Not sent to {call.origin.name}: {decision.why.value}."
    error = {"code": "RATE_LIMIT_EXCEEDED", "type": "client_refused", "message": message, "param": None}
    headers = {} if wait_s is None else {"retry-after": str(wait_s)}
    return call.setup.library.response(
        429, headers=headers, json={"error": error | {"reason": decision.why.value}}
    )
