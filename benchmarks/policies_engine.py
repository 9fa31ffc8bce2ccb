"""The simulated engine of the policy benchmark: the paged-KV scheduler, jumping from event to event.

Law of this file: same rules as `tidegate.testing.EngineSimulator`, which walks token by token; where both
are given the same requests at the same instants they finish them at the same instants with the same
preemptions (tests/server/test_benchmarks_smoke.py). Between two events every running sequence gains one
token a step, so a thousand steps cost as much as one: a million requests become affordable.

The one liberty: a shared prefix is one unit (all its blocks or none), not a chain of blocks.
"""

from __future__ import annotations

import heapq
import math
from collections import OrderedDict, deque
from collections.abc import Iterable

from tidegate.core.reading import Reading
from tidegate.testing.engine_values import EngineOptions


class Sequence:
    """One request in the engine: `known` tokens exist at step `step`, and one more each step after it."""

    __slots__ = (
        "blocks",
        "ends_at_step",
        "known",
        "pending",
        "phase",
        "prefix",
        "prefix_blocks",
        "prompt",
        "step",
        "target",
        "ticket",
    )

    def __init__(self, ticket: int, prompt: int, output: int, prefix: str | None, prefix_blocks: int) -> None:
        self.ticket = ticket
        self.prompt = prompt
        self.target = prompt + output
        self.prefix = prefix
        self.prefix_blocks = prefix_blocks
        self.known = prompt  # as of engine step `step`
        self.step = 0
        self.phase = 0  # takes a block in the steps that are congruent to it
        self.pending = 0  # tokens without KV while prefilling
        self.blocks = 0  # private ones, as of its admission
        self.ends_at_step = -1  # unset while it does not decode


class EventEngine:
    """Submit, then `advance` towards the next outside event; it answers with what finished and when."""

    def __init__(self, options: EngineOptions) -> None:
        self.options = options
        self.now_s = 0.0
        self.running: OrderedDict[int, Sequence] = OrderedDict()
        self.waiting: deque[Sequence] = deque()
        self.preemptions = 0
        self.generated = 0  # output tokens, each counted once
        self.prefilled = 0
        self.first_tokens: list[tuple[float, int]] = []  # (instant, ticket), for the world to take
        self._first: list[int] = []
        self._step = 0
        self._used = 0  # blocks held, shared ones once
        self._phases = [0] * options.block_tokens
        self._prefilling: Sequence | None = None
        self._finish: list[tuple[int, int, Sequence]] = []
        self._holders: dict[str, int] = {}
        self._idle: OrderedDict[str, int] = OrderedDict()
        self._idle_blocks = 0

    @property
    def has_work(self) -> bool:
        """Whether anything runs or waits."""
        return bool(self.running or self.waiting)

    @property
    def usable_blocks(self) -> int:
        """As in vLLM, one block is never handed out."""
        return self.options.num_blocks - 1

    def submit(
        self, ticket: int, prompt: int, output: int, prefix: str | None = None, prefix_blocks: int = 0
    ) -> None:
        """Puts a request (sizes in tokens) at the end of the line; `prefix` names shared leading blocks."""
        self.waiting.append(Sequence(ticket, prompt, output, prefix, prefix_blocks))

    def outputs(self) -> Iterable[tuple[int, int]]:
        """(ticket, output tokens so far) of every running sequence past its prompt."""
        for sequence in self.running.values():
            if not sequence.pending:
                yield sequence.ticket, sequence.known + self._step - sequence.step - sequence.prompt

    def reading(self) -> Reading:
        """What a probe would report now."""
        return Reading(
            kv_usage=self._used / self.usable_blocks,
            waiting=len(self.waiting),
            running=len(self.running),
            capacity_tokens=self.options.num_blocks * self.options.block_tokens,
            block_tokens=self.options.block_tokens,
            max_sequences=self.options.max_sequences,
            max_model_tokens=self.options.max_model_tokens,
            preemptions=self.preemptions,
            generation_tokens=self.generated,
            prompt_tokens=self.prefilled,
        )

    def advance(self, until_s: float) -> list[int]:
        """Runs the steps that begin before `until_s`, up to the first that finishes something.

        `now_s` is then the end of the last step; the tickets returned finished at that instant.
        """
        while self.has_work and self.now_s < until_s:
            before = self.preemptions
            self._preempt_for_next_step()
            if self._prefilling or (
                self.waiting and self.preemptions == before and self._fits(self.waiting[0])
            ):
                self._mixed_step(admit=self.preemptions == before)
            else:
                self._decode_steps(until_s)
            if self._finish and self._finish[0][0] <= self._step:
                return self._retire()
        return []

    def _need(self, steps: int) -> int:
        """Blocks that the running sequences take within the next `steps` steps."""
        cycles, rest = divmod(steps, self.options.block_tokens)
        need = cycles * sum(self._phases)
        for offset in range(1, rest + 1):
            need += self._phases[(self._step + offset) % self.options.block_tokens]
        return need

    def _preempt_for_next_step(self) -> None:
        while self.running and self._need(1) > self.usable_blocks - self._used:
            _, victim = self.running.popitem()
            if victim is self._prefilling:
                self._prefilling = None
            self._settle_known(victim)
            self._give_back(victim)
            self.waiting.appendleft(victim)
            self.preemptions += 1

    def _settle_known(self, sequence: Sequence) -> None:
        if not sequence.pending:
            sequence.known += self._step - sequence.step
            self._phases[sequence.phase] -= 1
        sequence.ends_at_step = -1  # its entry in the finish heap is void

    def _give_back(self, sequence: Sequence) -> None:
        shared = sequence.prefix_blocks if sequence.prefix else 0
        held = sequence.blocks if sequence.pending else self._blocks(sequence.known) - shared
        self._used -= held
        if sequence.prefix is not None:
            self._holders[sequence.prefix] -= 1
            if not self._holders[sequence.prefix]:
                del self._holders[sequence.prefix]
                self._used -= shared
                self._idle[sequence.prefix] = shared
                self._idle_blocks += shared

    def _blocks(self, known: int) -> int:
        """Blocks held once `known` tokens exist: the newest has no KV before the step that follows it."""
        return -(-(known - 1) // self.options.block_tokens)

    def _fits(self, sequence: Sequence) -> bool:
        if len(self.running) >= self.options.max_sequences:
            return False
        shared = sequence.prefix_blocks if sequence.prefix in self._holders else 0
        return self._blocks(sequence.known + 1) - shared <= self.usable_blocks - self._used

    def _mixed_step(self, *, admit: bool) -> None:
        """One step in which prompts are computed beside the running answers."""
        options = self.options
        decodes = len(self.running) - (1 if self._prefilling else 0)
        self._used += self._need(1)
        self.generated += decodes
        self._step += 1
        budget = options.max_batched_tokens - decodes
        if self._prefilling:
            budget = self._compute(self._prefilling, budget)
        while admit and budget > 0 and not self._prefilling and self.waiting and self._fits(self.waiting[0]):
            sequence = self.waiting.popleft()
            self._hold(sequence)
            budget = self._compute(sequence, budget)
        prefilled = options.max_batched_tokens - decodes - budget
        self.now_s += (
            options.step_s + prefilled * options.prefill_s_per_token + decodes * options.decode_s_per_sequence
        )
        self.first_tokens += [(self.now_s, ticket) for ticket in self._first]
        self._first.clear()

    def _hold(self, sequence: Sequence) -> None:
        total = self._blocks(sequence.known + 1)
        cached = 0
        if sequence.prefix is not None:
            if sequence.prefix in self._holders or sequence.prefix in self._idle:
                cached = min(sequence.prefix_blocks, (sequence.known - 1) // self.options.block_tokens)
            self._idle_blocks -= self._idle.pop(sequence.prefix, 0)
            if sequence.prefix not in self._holders:
                self._used += sequence.prefix_blocks
            self._holders[sequence.prefix] = self._holders.get(sequence.prefix, 0) + 1
            total -= sequence.prefix_blocks
        self._used += total
        sequence.blocks = total
        sequence.pending = sequence.known - cached * self.options.block_tokens
        self.running[sequence.ticket] = sequence
        while self._idle_blocks > self.usable_blocks - self._used:
            self._idle_blocks -= self._idle.popitem(last=False)[1]

    def _compute(self, sequence: Sequence, budget: int) -> int:
        """Gives the prompt its part of the budget; what remains of the budget."""
        if sequence.pending > budget:
            sequence.pending -= budget
            self._prefilling = sequence
            return 0
        budget -= sequence.pending
        sequence.pending = 0
        self._prefilling = None
        if sequence.known == sequence.prompt:
            self.prefilled += sequence.prompt
            self._first.append(sequence.ticket)
        sequence.known += 1
        self.generated += 1
        sequence.step = self._step
        # A step that begins with n * block_tokens + 1 tokens takes a block.
        size = self.options.block_tokens
        sequence.phase = (self._step + 2 - sequence.known) % size
        self._phases[sequence.phase] += 1
        sequence.ends_at_step = self._step + sequence.target - sequence.known
        heapq.heappush(self._finish, (sequence.ends_at_step, sequence.ticket, sequence))
        return budget

    def _decode_steps(self, until_s: float) -> None:
        """As many pure decode steps as pass without an event."""
        count = len(self.running)
        duration = self.options.step_s + count * self.options.decode_s_per_sequence
        while self._finish and self._finish[0][0] != self._finish[0][2].ends_at_step:
            heapq.heappop(self._finish)
        reach = min((until_s - self.now_s) / duration, 1e9)  # nothing may be due at all
        steps = max(1, math.ceil(reach - 1e-9))
        if self._finish:
            steps = min(steps, max(1, self._finish[0][0] - self._step))
        steps = self._steps_that_fit(steps)
        self._used += self._need(steps)
        self._step += steps
        self.generated += steps * count
        self.now_s += steps * duration
        while self._idle_blocks > self.usable_blocks - self._used:
            self._idle_blocks -= self._idle.popitem(last=False)[1]

    def _steps_that_fit(self, steps: int) -> int:
        free = self.usable_blocks - self._used
        if self._need(steps) <= free:
            return steps
        low, high = 1, steps  # the first step fits: `_preempt_for_next_step` has seen to it
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self._need(middle) <= free else (low, middle)
        return low

    def _retire(self) -> list[int]:
        done: list[int] = []
        while self._finish and self._finish[0][0] <= self._step:
            step, _, sequence = heapq.heappop(self._finish)
            if step != sequence.ends_at_step:
                continue
            del self.running[sequence.ticket]
            self._settle_known(sequence)
            self._give_back(sequence)
            done.append(sequence.ticket)
        return done
