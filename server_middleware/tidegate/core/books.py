"""All state of one gate, built once and shared by the parts that work on it.

Law of this file: it only holds; nothing here decides.
"""

from __future__ import annotations

from tidegate.core.dispatch import Dispatcher
from tidegate.core.fair_queue import FairQueue
from tidegate.core.lengths import LengthModel
from tidegate.core.options import GateOptions
from tidegate.core.pool import Pool
from tidegate.core.prompts import PromptSizes
from tidegate.core.rates import ServiceRate
from tidegate.core.refusals import Refusals
from tidegate.core.retry_calendar import RetryCalendar
from tidegate.core.room import Room
from tidegate.core.running import ESTIMATE_EVERY_S, Running
from tidegate.core.tenants import Tenants


class Books:
    """The parts of a gate."""

    def __init__(self, options: GateOptions, now: float) -> None:
        self.options = options
        self.lengths = LengthModel(options.kv.default_output_tokens)
        self.prompts = PromptSizes(options.kv.bytes_per_token)
        self.tenants = Tenants(options)
        self.queue = FairQueue(options.classes, options.queue)
        self.calendar = RetryCalendar(options.calendar)
        self.rate = ServiceRate(options.kv.default_output_tokens, now)
        self.pool = Pool(options, self.lengths, self.prompts)
        self.running = Running(self.pool, self.tenants, self.lengths, self.prompts, self.rate)
        self.room = Room(self.queue, self.calendar, self.tenants)
        self.refusals = Refusals(self.queue, self.calendar, self.rate, self.tenants, self.running)
        self.dispatcher = Dispatcher(options, self.queue, self.pool)

    def bring_up(self, now: float) -> None:
        """Everything that changes by the mere passing of time."""
        rate, waiters, running = self.rate, self.queue.waiters, self.running
        if waiters or rate.is_loaded:
            rate.tick(now, is_loaded=bool(waiters))
        if self.calendar.next_at <= now:
            self.calendar.advance(now)
        if now - running.estimated_at >= ESTIMATE_EVERY_S:
            running.estimate(now)
