"""A paged-KV inference engine in miniature: continuous batching, chunked prefill, preemption by recompute.

Law of this file: synchronous, told the time, no randomness, nothing imported that waits or sends. The
scheduler follows vLLM's V1 one (vllm/v1/core/sched/scheduler.py, read at 0.32.0):

- Every step has a budget of tokens. Running sequences come first, in the order of admission; one that is
  decoding takes one token, one still prefilling takes as many as are left of the budget.
- A running sequence that needs a block when none is free preempts the sequence admitted last (itself, if it
  is that one). The victim loses its blocks, goes to the front of the waiting line, and its prompt and all
  it had generated are computed again when it returns: that work is the price of overload.
- Waiting sequences are admitted first come first served, while the whole known sequence fits into the free
  blocks, a seat is free and the budget is not used up. The first that does not fit blocks those behind it
  (so a victim never returns in the step that preempted it: it needs more than it left).

Two simplifications: a sequence takes the blocks of its whole known text at admission (vLLM takes them chunk
by chunk), and generated text is never shared.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Sequence

from tidegate.core.reading import Reading
from tidegate.testing.blocks import BlockPool
from tidegate.testing.engine_values import EngineOptions, EngineStats, StepReport


class _Sequence:
    """One request: `known` tokens (prompt and output so far), the last `pending` of them without KV yet."""

    __slots__ = (
        "answered",
        "id",
        "known",
        "pending",
        "prefix",
        "private_blocks",
        "prompt",
        "room",
        "running",
        "target",
    )

    def __init__(self, id_: Hashable, prompt: int, target: int, prefix: Sequence[Hashable]) -> None:
        self.id = id_
        self.prompt = prompt
        self.target = target
        self.prefix = prefix
        self.known = prompt
        self.pending = prompt
        self.private_blocks = 0
        self.room = 0  # tokens that fit into the blocks held
        self.running = False
        self.answered = False  # its prompt has been counted


class _Step:
    """What the step under way has planned so far."""

    __slots__ = ("advanced", "budget", "decodes", "preempted")

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.decodes = 0
        self.advanced: list[_Sequence] = []
        self.preempted: list[Hashable] = []


class EngineSimulator:
    """The engine. Submit requests, call `step` while there is work, read what happened.

    A discrete-event simulation calls `step(now_s)` and comes back at `report.ends_at_s`.
    """

    def __init__(self, options: EngineOptions | None = None) -> None:
        self.options = options or EngineOptions()
        self._pool = BlockPool(self.options.num_blocks - 1)
        self._live: dict[Hashable, _Sequence] = {}
        self._running: list[_Sequence] = []
        self._waiting: OrderedDict[Hashable, _Sequence] = OrderedDict()
        self._preemptions = self._prompt_tokens = self._generation_tokens = 0
        self._query_tokens = self._hit_tokens = self._finished = self._cancelled = 0

    @property
    def has_work(self) -> bool:
        """Whether any request is running or waiting."""
        return bool(self._live)

    def submit(
        self, request_id: Hashable, *, prompt_tokens: int, output_tokens: int, prefix: Sequence[Hashable] = ()
    ) -> None:
        """Puts a request at the end of the waiting line.

        Args:
            request_id: any hashable not in use; it comes back in the reports.
            prompt_tokens: length of the prompt, at least 1.
            output_tokens: length the answer will have, at least 1.
            prefix: identities of the prompt's leading full blocks; equal ones are shared between requests.

        Raises:
            ValueError: a length is below 1, both exceed `max_model_tokens`, the prefix is longer than the
                prompt, or the id is in use.
        """
        if prompt_tokens < 1 or output_tokens < 1:
            raise ValueError(
                f"prompt_tokens={prompt_tokens}, output_tokens={output_tokens}: each must be at least 1."
            )
        if prompt_tokens + output_tokens > self.options.max_model_tokens:
            raise ValueError(
                f"prompt_tokens={prompt_tokens} and output_tokens={output_tokens} together exceed "
                f"max_model_tokens={self.options.max_model_tokens}."
            )
        if len(prefix) * self.options.block_tokens > prompt_tokens:
            raise ValueError(
                f"{len(prefix)} prefix blocks are longer than the prompt of {prompt_tokens} tokens."
            )
        if request_id in self._live:
            raise ValueError(f"request_id {request_id!r} is in use.")
        sequence = _Sequence(request_id, prompt_tokens, prompt_tokens + output_tokens, prefix)
        self._live[request_id] = self._waiting[request_id] = sequence

    def cancel(self, request_id: Hashable) -> bool:
        """Forgets a request and frees its blocks at once; False when it is not here (any more)."""
        sequence = self._live.pop(request_id, None)
        if sequence is None:
            return False
        if sequence.running:
            self._running.remove(sequence)
            self._pool.release(sequence.prefix, sequence.private_blocks)
        else:
            del self._waiting[request_id]
        self._cancelled += 1
        return True

    def step(self, now_s: float) -> StepReport:
        """One scheduler step that begins at `now_s`. With nothing to do it is empty and ends at once."""
        if not self._live:
            return StepReport(ends_at_s=now_s, advanced=[], finished=[], preempted=[])
        step = _Step(self.options.max_batched_tokens)
        self._continue_running(step)
        self._admit_waiting(step)
        finished = self._retire(step.advanced)
        self._generation_tokens += len(step.advanced)
        prefilled = self.options.max_batched_tokens - step.budget - step.decodes
        return StepReport(
            ends_at_s=now_s
            + self.options.step_s
            + prefilled * self.options.prefill_s_per_token
            + step.decodes * self.options.decode_s_per_sequence,
            advanced=[sequence.id for sequence in step.advanced],
            finished=finished,
            preempted=step.preempted,
        )

    def stats(self) -> EngineStats:
        """The gauges and totals now."""
        return EngineStats(
            running=len(self._running),
            waiting=len(self._waiting),
            kv_usage=1.0 - self._pool.free / self._pool.usable,
            preemptions=self._preemptions,
            prompt_tokens=self._prompt_tokens,
            generation_tokens=self._generation_tokens,
            prefix_query_tokens=self._query_tokens,
            prefix_hit_tokens=self._hit_tokens,
            finished_requests=self._finished,
            cancelled_requests=self._cancelled,
        )

    def reading(self) -> Reading:
        """The same as a probe would report it."""
        stats = self.stats()
        return Reading(
            kv_usage=stats.kv_usage,
            waiting=stats.waiting,
            running=stats.running,
            capacity_tokens=self.options.num_blocks * self.options.block_tokens,
            block_tokens=self.options.block_tokens,
            max_sequences=self.options.max_sequences,
            max_model_tokens=self.options.max_model_tokens,
            preemptions=stats.preemptions,
            generation_tokens=stats.generation_tokens,
            prompt_tokens=stats.prompt_tokens,
        )

    def _continue_running(self, step: _Step) -> None:
        index = 0
        running = self._running  # shrinks from its end while we walk: a victim is never one already passed
        while index < len(running) and step.budget:
            sequence = running[index]
            if sequence.known > sequence.room and not self._make_room(sequence, step):
                return
            self._compute(sequence, step)
            index += 1

    def _make_room(self, sequence: _Sequence, step: _Step) -> bool:
        """One more block for `sequence`; False when it had to be preempted itself."""
        while not self._pool.free:
            victim = self._running.pop()
            self._pool.release(victim.prefix, victim.private_blocks)
            victim.running = False
            self._waiting[victim.id] = victim
            self._waiting.move_to_end(victim.id, last=False)
            self._preemptions += 1
            step.preempted.append(victim.id)
            if victim is sequence:
                return False
        self._pool.extend()
        sequence.private_blocks += 1
        sequence.room += self.options.block_tokens
        return True

    def _admit_waiting(self, step: _Step) -> None:
        block = self.options.block_tokens
        while self._waiting and step.budget and len(self._running) < self.options.max_sequences:
            sequence = next(iter(self._waiting.values()))
            private = -(-sequence.known // block) - len(sequence.prefix)
            if self._pool.cost(sequence.prefix, private) > self._pool.free:
                return
            del self._waiting[sequence.id]
            # The last token is always computed: its KV may be cached, the logits are not.
            cached = min(self._pool.hits(sequence.prefix), (sequence.known - 1) // block) * block
            self._pool.hold(sequence.prefix, private)
            self._query_tokens += sequence.known
            self._hit_tokens += cached
            sequence.running = True
            sequence.private_blocks = private
            sequence.room = (private + len(sequence.prefix)) * block
            sequence.pending = sequence.known - cached
            self._running.append(sequence)
            self._compute(sequence, step)

    def _compute(self, sequence: _Sequence, step: _Step) -> None:
        """Gives `sequence` its part of the budget; when nothing is pending any more, that yields a token."""
        if sequence.pending > step.budget:
            sequence.pending -= step.budget
            step.budget = 0
            return
        step.budget -= sequence.pending
        if sequence.pending == 1:
            step.decodes += 1
        if not sequence.answered:
            sequence.answered = True
            self._prompt_tokens += sequence.prompt
        sequence.known += 1
        sequence.pending = 1
        step.advanced.append(sequence)

    def _retire(self, advanced: list[_Sequence]) -> list[Hashable]:
        finished = [sequence for sequence in advanced if sequence.known == sequence.target]
        for sequence in finished:
            self._pool.release(sequence.prefix, sequence.private_blocks)
            self._running.remove(sequence)
            del self._live[sequence.id]
        self._finished += len(finished)
        return [sequence.id for sequence in finished]
