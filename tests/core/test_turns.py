"""End users behind one key: the tenant's bounds hold for all of them together, and inside they share."""

from __future__ import annotations

import heapq
import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.core.driver import Driver, wide
from tidegate.core.decisions import Admit, Ask, Reason
from tidegate.core.flow import Flow
from tidegate.core.lengths import LengthModel
from tidegate.core.line import COMPACT_ABOVE, Waiter
from tidegate.core.options import ClassOptions, GateOptions, KvOptions, QueueOptions, TenantLimits
from tidegate.core.tenants import Tenants
from tidegate.core.turns import MOST_LINES, SCAN, Turns


def driver(slots: int = 4, room: int = 1000, **tenants: TenantLimits) -> Driver:
    """An engine of so many slots before which only order matters."""
    return Driver(
        GateOptions(
            kv=KvOptions(capacity_tokens=10**7, max_sequences=slots),
            queue=QueueOptions(max_requests=room),
            classes=(ClassOptions(name="standard", max_wait_s=1e6, max_queued=room),),
            tenants=tenants,
        ),
        now=0.0,
    )


def serve(
    d: Driver, waiting: dict[int, tuple[str, str | None]], seconds: float
) -> Counter[tuple[str, str | None]]:
    """Keep every caller's backlog up while answers of one second end; answers per caller."""
    running: list[tuple[float, int]] = []
    served: Counter[tuple[str, str | None]] = Counter()
    owner = dict(waiting)

    def offer(caller: tuple[str, str | None]) -> None:
        decision = d.offer(caller[0], end_user=caller[1], prompt_tokens=10, max_output_tokens=10)
        owner[decision.ticket] = caller
        if isinstance(decision, Admit):
            heapq.heappush(running, (d.now + 1.0, decision.ticket))

    for caller in list(waiting.values()):
        offer(caller)
    while running and running[0][0] < seconds:
        d.now, ticket = heapq.heappop(running)
        served[owner[ticket]] += 1
        for started in d.release(ticket, prompt_tokens=10, output_tokens=10):
            heapq.heappush(running, (d.now + 1.0, started))
        offer(owner[ticket])
    return served


def backlog(**users: int) -> dict[int, tuple[str, str | None]]:
    """`tenant__user=count` as so many callers."""
    callers = []
    for name, count in users.items():
        tenant, _, user = name.partition("__")
        callers += [(tenant, user or None)] * count
    return dict(enumerate(callers, start=-len(callers)))


def test_many_end_users_are_no_more_than_one_tenant() -> None:
    """A service with forty users and another with one get the same, by weight."""
    d = driver()
    callers = backlog(**{f"busy__u{number}": 2 for number in range(40)}, lone=80)
    served = serve(d, callers, 200.0)
    busy = sum(count for (tenant, _), count in served.items() if tenant == "busy")
    assert busy == pytest.approx(sum(served.values()) / 2, rel=0.05)
    d = driver(busy=TenantLimits(weight=3.0))
    served = serve(d, callers, 200.0)
    busy = sum(count for (tenant, _), count in served.items() if tenant == "busy")
    assert busy == pytest.approx(sum(served.values()) * 3 / 4, rel=0.05)


def test_end_users_share_their_tenants_turns_however_loud_they_are() -> None:
    """One asks with fifty requests at a time, one with five; the header's absence is a user as well."""
    served = serve(driver(), backlog(s__loud=50, s__soft=5, s=5), 150.0)
    shares = [served["s", "loud"], served["s", "soft"], served["s", None]]
    assert max(shares) <= 1.1 * min(shares)


def test_idle_time_is_no_credit() -> None:
    """Who comes late shares from then on, and is not served first for all it has missed."""
    d = driver(slots=1)
    running = d.admit("x").ticket
    early = [d.queue("s", end_user="early").ticket for _ in range(40)]
    for ticket in early[:20]:
        assert d.release(running, prompt_tokens=10, output_tokens=90) == [ticket]
        running = ticket
    late = [d.queue("s", end_user="late").ticket for _ in range(10)]
    order = []
    for _ in range(10):
        (running,) = d.release(running, prompt_tokens=10, output_tokens=90)
        order.append(running in late)
    assert 4 <= sum(order) <= 6


def test_concurrency_is_the_tenants_and_not_each_users() -> None:
    """Five users, two at once; an ended answer lets the next user's request in."""
    d = driver(slots=50, s=TenantLimits(max_concurrency=2))
    running = [d.admit("s", end_user=f"u{number}").ticket for number in range(2)]
    queued = [d.queue("s", end_user=f"u{number}").ticket for number in range(2, 5)]
    d.admit("other")
    assert d.release(running[0]) == [queued[0]]
    assert d.release(running[1]) == [queued[1]]
    assert d.release(queued[0]) == [queued[2]]


def test_a_full_tenant_takes_the_seat_of_its_heaviest_user() -> None:
    """The flood of one user gives way to another's first request, and not the other way round."""
    d = driver(slots=1, s=TenantLimits(max_queued=8))
    d.admit("x")
    flood = [d.queue("s", end_user="loud").ticket for _ in range(8)]
    d.queue("s", end_user="soft")
    (refusal,) = d.step.refusals
    assert (refusal.ticket, refusal.reason, refusal.scope) == (flood[-1], Reason.TENANT_QUEUE_FULL, "tenant")
    assert d.gate.precheck("s", "standard", d.now, d.uniform) is None, "its user is not known yet"
    assert d.refuse("s", end_user="loud").reason is Reason.TENANT_QUEUE_FULL


def test_equal_keys_of_two_users_are_two_requests() -> None:
    """Nobody supersedes, or takes the place of, another user of the same service."""
    d = driver(slots=2)
    first = d.admit("s", end_user="a", identity="k", is_keyed=True, digest=b"body").ticket
    d.gate.caller_gone(first, d.now)
    d.admit("s", end_user="b", identity="k", is_keyed=True, digest=b"body")
    assert not d.step.cancelled
    d.queue("s", end_user="a", identity="k", is_keyed=True, digest=b"body")
    assert d.step.cancelled == (first,)


def test_users_remembered_are_bounded() -> None:
    """Made-up users cost a bounded memory, and go on being served."""
    d = driver(slots=10_000)
    for number in range(MOST_LINES + 3 * SCAN):
        d.release(d.admit("s", end_user=f"u{number}").ticket, prompt_tokens=10, output_tokens=90)
    flow = d.gate._books.tenants.get("s", d.now).flows["standard"]
    assert flow.turns is not None
    assert len(flow.turns) <= MOST_LINES


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**16),
    loads=st.lists(
        st.tuples(st.sampled_from(["a", "b", "c", None]), st.integers(1, 9)), min_size=2, max_size=5
    ),
    leavers=st.integers(0, 6),
)
def test_backlogged_users_never_drift_apart(
    seed: int, loads: list[tuple[str | None, int]], leavers: int
) -> None:
    """Property (the bound of VTC): while users wait, their service differs by no more than what can run.

    Whatever the sizes, the order of arrival, and whoever leaves in between.
    """
    rng = random.Random(seed)
    slots = 3
    d = driver(slots=slots, s=TenantLimits(max_queued=900))
    users = sorted({user for user, _ in loads}, key=str)
    size = {user: rng.choice([5, 40, 200]) for user in users}
    declared = {user: size[user] * rng.choice([1, 4]) for user in users}
    waiting: dict[str | None, list[int]] = {user: [] for user in users}
    owner: dict[int, str | None] = {}
    running = [d.admit("x").ticket for _ in range(slots)]
    order = [user for user, count in loads for _ in range(count)]
    rng.shuffle(order)

    def offer(user: str | None) -> None:
        ticket = d.queue(
            "s", end_user=user, prompt_tokens=size[user], max_output_tokens=declared[user]
        ).ticket
        owner[ticket] = user
        waiting[user].append(ticket)

    for user in order:
        offer(user)
    served: Counter[str | None] = Counter()
    for step in range(150):
        for user in users:
            while len(waiting[user]) < 3:
                offer(user)
        if leavers and step % 11 == 0:
            leavers -= 1
            user = rng.choice(users)
            if len(waiting[user]) > 1:
                d.cancel(waiting[user].pop(rng.randrange(len(waiting[user]))))
        ended = running.pop(rng.randrange(len(running)))
        used = size.get(owner.get(ended, "x"), 10)
        for ticket in d.release(ended, prompt_tokens=used, output_tokens=used):
            running.append(ticket)
            waiting[owner[ticket]].remove(ticket)
            served[owner[ticket]] += 3 * size[owner[ticket]]
    gap = max(served[user] for user in users) - min(served[user] for user in users)
    assert gap <= 2 * max(declared.values()) * (slots + 2) + 3 * max(size.values())


def _waiters(flow: Flow, count: int) -> list[Waiter]:
    asks = [
        Ask(ticket=n, tenant="t", priority_class="standard", prompt_tokens=1, end_user="u")
        for n in range(count)
    ]
    kinds = LengthModel.kinds(None, None)
    return [
        Waiter(ask, flow, float(ask.ticket), 0.0, 0.0, 9.0, kinds, 0.5, 0.0, sequence=ask.ticket)
        for ask in asks
    ]


def test_what_is_out_of_date_among_end_users_is_bounded() -> None:
    """Whoever comes and goes at once leaves nothing behind for ever."""
    flow = Driver(wide()).gate._books.queue.flow(Tenants(GateOptions()).get("t", 0.0), "standard")
    first, *others = _waiters(flow, 200)
    turns = Turns([first])
    for waiter in others:
        turns.seat(waiter)
        turns.settled("u", 1.0)
        turns.leave(waiter.ask.ticket)
    [line] = turns._lines.values()
    assert len(line._heap) <= COMPACT_ABOVE + 3
    assert len(turns._order) <= COMPACT_ABOVE + 3
    assert turns.head() is first
