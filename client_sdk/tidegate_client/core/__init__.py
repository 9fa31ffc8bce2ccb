"""Theory of operation of the client: headers in, a decision out, nothing else.

Law of this package: pure. No clock, no randomness, no I/O, no third-party import; `now` and `uniform` are
arguments.

A call is one request of the caller, whatever number of attempts it takes. Each attempt ends in an *outcome*
(an answer with its status, or a failure to connect or to read). `advice` turns the answer's headers into what
the server asked for; `refusal` turns its body into who refused and why, with `clouds` for those who say the
time there alone. `decision` joins both with the caller's `policy` and says one of three things: deliver the
outcome, give up (and why), or resend (no earlier than when). `lane` holds what all calls of the process know
about one origin: until when it asked for silence, and who goes next; `pace` says how fast, by what the server
states or has shown. `budget` bounds the retries nobody asked for.

Units: `_s` is seconds, monotonic instants are called `now`/`until`, wall-clock instants (epoch seconds)
`wall_*`.

Invariants:

1. a server-given time is a floor; jitter is added to it, never subtracted, and no cap removes it;
2. a wait that does not fit the caller's budget is an error now, never a shorter wait;
3. parsing is total: every header and body is either understood or ignored;
4. what one refusal said never shortens what an earlier one said.
"""
