"""What becomes known of a request on its way in: to those who listen, and to the caller who is refused.

Law of this file: every refusal is counted and put into words here, once.
"""

from __future__ import annotations

from tidegate.asgi.arrival import Arrival, Denied
from tidegate.asgi.replies import Replier, Reply, problem_reason
from tidegate.asgi.surroundings import Surroundings
from tidegate.core.decisions import Admit, Refuse
from tidegate.telemetry.events import AdmissionEvent, EventKind


class Announcer:
    """Tells of the arrivals of one middleware."""

    def __init__(self, around: Surroundings, replier: Replier) -> None:
        self._hook = around.hook
        self._clock = around.clock
        self._replier = replier

    def say(
        self,
        kind: EventKind,
        arrival: Arrival,
        *,
        reason: str = "",
        position: int = 0,
        estimated_wait_s: float | None = None,
        waited_s: float = 0.0,
    ) -> None:
        """Emit an event about this arrival."""
        if not self._hook.hears(kind):
            return
        self._hook(
            AdmissionEvent(
                kind=kind,
                tenant=arrival.tenant,
                priority_class=arrival.priority_class,
                reason=reason,
                position=position,
                estimated_wait_s=estimated_wait_s,
                waited_s=waited_s,
            )
        )

    def admitted(self, arrival: Arrival, admit: Admit) -> None:
        """It may run."""
        self._hook.admitted((arrival.priority_class, admit.waited_s))
        self.say(EventKind.ADMITTED, arrival, waited_s=admit.waited_s)

    def denied(self, arrival: Arrival, refuse: Refuse) -> Denied:
        """A refusal, counted and put into words."""
        reply = self._replier.refusal(refuse, arrival.scope, arrival.route)
        waited_s = self._clock() - arrival.at
        reason = refuse.reason._value_  # on Python 3.11 `value` takes a call of its own
        self._say_refused(arrival, reason, reply, waited_s, refuse.retry_after_s)
        return Denied(reply)

    def rejected(self, status: int, text: str, arrival: Arrival, param: str | None = None) -> Denied:
        """A request that is wrong by itself, counted and put into words."""
        reply = self._replier.bad_request(status, text, arrival.scope, arrival.route, param)
        self._say_refused(arrival, problem_reason(status), reply)
        return Denied(reply)

    def _say_refused(
        self,
        arrival: Arrival,
        reason: str,
        reply: Reply,
        waited_s: float = 0.0,
        retry_after_s: float | None = None,
    ) -> None:
        tenant, priority_class, hook = arrival.tenant, arrival.priority_class, self._hook
        hook.refused((tenant, priority_class, reason, waited_s, retry_after_s, reply.request_id))
        if hook.hears(EventKind.REFUSED):
            hook(
                AdmissionEvent(
                    kind=EventKind.REFUSED,
                    tenant=tenant,
                    priority_class=priority_class,
                    reason=reason,
                    waited_s=waited_s,
                    retry_after_s=retry_after_s,
                    request_id=reply.request_id,
                )
            )
