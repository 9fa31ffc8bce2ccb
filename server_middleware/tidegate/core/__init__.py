"""The admission core: theory of operation.

A request meets a gate. The gate answers with a value: it may start (`Admit`), it waits (`Queued`), or it may
not run now or ever (`Refuse`). Nothing in this package waits, sends, logs, reads a clock or draws a number:
`now` (seconds on one monotonic clock) and `uniform` (a source of numbers in [0, 1)) are arguments, and what
has to be done comes back as a `Step`. The shell acts on it and calls `advance` at the instant it names.

The life of a request
    offer  -> refused at the door (intake)              nothing has been charged
           -> seated (fair_queue), then at once or later
                started (dispatch)                      its lease is charged in the same step
                refused (expired, displaced, hopeless)  what it was charged is given back
    release <- its lease ends, exactly once, however it ended (running)

Where things are decided
    Who is refused at the door, in order of cost                          intake.py
    Who goes first: classes, then the tenants of one, in turn             fair_queue.py, band.py
    ... and the requests of one tenant: end users, sessions, returns      flow.py, turns.py, line.py
    Who starts next: promotion of starved classes, passing                dispatch.py
    Whether it fits: every bound of one engine, asked in one place        instance.py, verdict.py
    What readings and leases have put on record of one engine             instance_record.py
    What the leases hold, and what the future holds: peak and chance      ledger.py, occupancy.py
    What a request of many sequences takes up at once                     wide.py
    How long answers and prompts are                                      lengths.py, prompts.py
    What the engine's prompt counter says of the tokenizer                prompt_counter.py
    How much may be unread                                                prefill.py
    What the measured level corrects: share, foreign load, margin         calibration.py
    What the engine's token counter corrects: undercounted streams        growth.py
    What a reading is worth: fresh, stale, blind, frozen, stalled, asleep signal.py
    How much may run without readings                                     blind.py
    When a refused caller may come back                                   retry_calendar.py
    ... and one that has used up its quota                                quota.py, bucket.py
    How fast slots come free                                              rates.py
    How far an answer has come that runs                                  progress.py
    What a request has used in the end, and what that teaches             running.py, usage.py
    Who gives way in a full room                                          room.py
    Why a request is refused, and what it is told                         refusals.py
    On which of several engines, or of an engine's ranks, it runs         pool.py, ranks.py
    Which engines have gone though work is charged to them                absent.py
    Which of two capacities an engine's level goes by                     capacity.py
    How many run where tokens come too slowly                             pace.py
    When to look again at a level above the watermark                     backoff.py
    Who is remembered: tenants and their conversations                    tenants.py
    The order of it all within one step                                   cycle.py
    The operations, and all the state they work on                        gate.py, books.py

The words it speaks in
    What is asked and answered                                            decisions.py
    What an engine says of itself                                         reading.py
    What is to be seen of a gate                                          statistics.py, snapshot.py
    What may be set, and what is said of a wrong value                    options.py, option_checks.py

Units. Sizes are tokens of KV cache unless the name says otherwise (`_s` seconds, `_bytes`). A lease holds
`share * prompt + seen` tokens and half a block per sequence, and has `left` tokens to generate in each
sequence. All sequences grow by one token per decode step, so the cache is fullest just before one of them
ends, and the peak ahead is a maximum over the leases sorted by what they have left.

Why a ledger and not a watermark alone. A gauge that is read once a second says nothing of a burst between
two readings, nor of the answers that those already running still have to grow. The ledger is charged at the
decision, sees the future peak, and is corrected by every reading; the watermark stays as the outer guard.

Invariants, after every step (tests/core/invariants.py holds them against formulas of their own):
    1. The charge is the sum of the leases, and no grant took the projected peak over its class's ceiling
       (a promoted head: the top one; a lone request excepted).
    2. No grant after its deadline.
    3. While the gate is open, the head of the queue does not fit.
    4. Every lease ends exactly once.

Not safe for concurrent use: one gate belongs to one thread or event loop.
"""
