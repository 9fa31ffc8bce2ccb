#!/usr/bin/env python3
"""Plant one bug at a time in a copy of the core and see whether its tests notice.

    .venv/bin/python scripts/planted_bugs.py            all bugs; exit code 1 if one survives
    .venv/bin/python scripts/planted_bugs.py NAME ...    some of them

Law of this file: a bug is one replacement of text that must match exactly once; the tree itself is never
touched. A test suite that lets one of these through does not test what it says.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "server_middleware"
PROFILE = "--hypothesis-profile=no-shrink"  # that it fails is enough


class Bug(NamedTuple):
    """A replacement in one file of the core."""

    name: str
    file: str
    right: str
    wrong: str


BUGS = (
    Bug("peak-forgets-growth", "occupancy.py", "held + (before + sequences) * left)", "held)"),
    Bug(
        "charge-lost-on-drain",
        "ledger.py",
        "        if not lease.is_drained:\n            self._drop(lease)",
        "        self._drop(lease)",
    ),
    Bug(
        "lease-counts-as-finished",
        "ledger.py",
        "            left = least\n",
        "            left += 0.0\n",
    ),
    Bug("bound-forgets-growth", "ledger.py", "self._most += max(0.0, grown)", "self._most += 0.0"),
    Bug(
        "known-moment-keeps-the-gone",
        "ledger.py",
        "self._least -= held + sequences * self._moment",
        "self._least -= 0.0",
    ),
    Bug(
        "batch-needs-every-seat",
        "wide.py",
        "min(asked, max(1, math.ceil(most * HALF)))",
        "asked",
    ),
    Bug("batch-holds-all-of-it", "wide.py", "max(at_once / asked, _longest(prompt, bounds))", "1.0"),
    Bug("estimate-beyond-the-context", "wide.py", "min(prompt, context_tokens * ask.sequences)", "prompt"),
    Bug("sum-keeps-the-gone", "ledger.py", "self._held -= held", "self._held -= 0.0"),
    Bug(
        "short-cut-brings-credit",
        "flow.py",
        "            self.counter = self.band.floor\n",
        "            self.counter += 0.0\n",
    ),
    Bug(
        "short-cut-is-no-dispatch",
        "dispatch.py",
        "        self._count(band)\n        return placement",
        "        return placement",
    ),
    Bug("release-twice", "running.py", "self._places.pop(ticket, None)", "self._places.get(ticket)"),
    Bug("charge-not-made", "running.py", "        flow.running += 1\n", "        flow.running += 0\n"),
    Bug(
        "served-for-nothing",
        "band.py",
        "flow.counter += tokens / flow.tenant.limits.weight",
        "flow.counter += 0.0",
    ),
    Bug(
        "idle-credit-is-banked",
        "band.py",
        "flow.counter = max(flow.counter, least)",
        "flow.counter = min(flow.counter, least)",
    ),
    Bug(
        "bytes-leak", "fair_queue.py", "self.queued_bytes -= waiter.ask.body_bytes", "self.queued_bytes -= 0"
    ),
    Bug(
        "expired-stays", "fair_queue.py", "self._expiries[0][0] < now or", "self._expiries[0][0] < now - 5 or"
    ),
    Bug(
        "tenant-cap-ignored",
        "tenants.py",
        "self.running >= self.limits.max_concurrency",
        "self.running > self.limits.max_concurrency",
    ),
    Bug(
        "eviction-forgives",
        "tenants.py",
        "return self.quota is None or self.quota.is_full(now)",
        "return True",
    ),
    Bug(
        "cancel-wakes-nobody",
        "cycle.py",
        "        self._dispatch(effects, now)\n        while",
        "        if arrival is not None:\n            self._dispatch(effects, now)\n        while",
    ),
    Bug(
        "refusal-costs",
        "cycle.py",
        "quota.settle(-1.0, -waiter.charged_tokens, now)",
        "quota.settle(0.0, 0.0, now)",
    ),
    Bug("no-look-planned", "cycle.py", "wake_at = self._look_at", "wake_at = None"),
    Bug(
        "ceiling-ignored",
        "instance.py",
        "return whole * ceiling.share - self.calibration.foreign_tokens",
        "return whole - self.calibration.foreign_tokens",
    ),
    Bug(
        "foreign-load-forgotten",
        "instance.py",
        "held = ledger.held_tokens() + self.calibration.foreign_tokens",
        "held = ledger.held_tokens()",
    ),
    Bug(
        "blind-is-empty",
        "signal.py",
        "        if reading is None:\n            return State.BLIND",
        "        if reading is None:\n            return State.FRESH",
    ),
    Bug("no-hysteresis", "signal.py", "        elif level < low:", "        elif level < high:"),
    Bug(
        "share-follows-its-effect",
        "calibration.py",
        "shortage > 0 and is_calm and",
        "shortage > 0 and",
    ),
    Bug(
        "share-rises-slowly",
        "calibration.py",
        "self._shift(prompts, surplus)",
        "self._shift(prompts, surplus * FALL_RATE)",
    ),
    Bug(
        "booking-claims-nothing",
        "quota.py",
        "            self._claim(booking, 1)\n",
        "            self.booked += 1\n",
    ),
    Bug(
        "debt-takes-booked-refill",
        "bucket.py",
        "paid = min(self.debt, max(0.0, self.level - self.booked))",
        "paid = min(self.debt, max(0.0, self.level))",
    ),
    Bug("one-slot-for-all", "retry_calendar.py", "        flow.tail_at = slot_at\n", ""),
    Bug(
        "told-wait-changes",
        "retry_calendar.py",
        "if known is not None and known.told_at > now:",
        "if known is not None and known.told_at < now:",
    ),
    Bug(
        "promoted-without-end",
        "dispatch.py",
        "if self.since_served(band) < BETWEEN_PROMOTIONS:",
        "if self.since_served(band) < 0:",
    ),
    Bug(
        "overdue-starves",
        "dispatch.py",
        "if overdue is None or self.since_served(overdue.waiter.flow.band) < 2 * BETWEEN_PROMOTIONS:",
        "if overdue is None or overdue:",
    ),
    Bug(
        "anyone-supersedes",
        "running.py",
        "if has_left and lease.ask.digest == ask.digest and",
        "if has_left and",
    ),
    Bug("superseded-while-watched", "running.py", "if has_left and lease.ask.digest", "if lease.ask.digest"),
    Bug(
        "early-return-jumps",
        "intake.py",
        "now < slot.told_at - EARLY_S and not self._is_free",
        "now < slot.told_at - 1e9 and not self._is_free",
    ),
    Bug(
        "survivors-only",
        "lengths.py",
        "censored = sorted([*under_way, *self.cut])",
        "censored = sorted(self.cut)",
    ),
    Bug(
        "parted-forgets-who-was-under-way",
        "lengths.py",
        "            books[0].parted.end(ticket, length, is_cut)\n",
        "            pass\n",
    ),
    Bug("fresh-whatever-it-says", "signal.py", "certain_until if is_plain else -math.inf", "certain_until"),
    Bug(
        "fresh-for-too-long",
        "signal.py",
        "min(now + surely_s, self.moved_at",
        "max(now + surely_s, self.moved_at",
    ),
    Bug(
        "at-rest-though-some-wait",
        "cycle.py",
        "if self._books.queue.waiters or self.blocked_by is not None:",
        "if self.blocked_by is not None:",
    ),
    Bug(
        "slots-fall-due-unseen",
        "retry_calendar.py",
        "self.next_at = min(self.next_at, at)",
        "self.next_at += 0.0",
    ),
    Bug("rate-measures-demand", "rates.py", "if self.is_loaded and elapsed_s > 0:", "if elapsed_s > 0:"),
)


def plant(bug: Bug, target: Path) -> None:
    """Copy the package and spoil one line of it."""
    shutil.copytree(SOURCE, target, ignore=shutil.ignore_patterns("__pycache__"))
    path = target / "tidegate" / "core" / bug.file
    text = path.read_text(encoding="utf-8")
    if text.count(bug.right) != 1:
        raise SystemExit(
            f"{bug.name}: its text stands {text.count(bug.right)} times in {bug.file}, not once."
        )
    path.write_text(text.replace(bug.right, bug.wrong), encoding="utf-8")


def is_caught(bug: Bug) -> tuple[bool, str]:
    """Whether the tests of the core fail on this bug, and by which test."""
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "server_middleware"
        plant(bug, target)
        environment = {**os.environ, "PYTHONPATH": str(target), "PYTHONDONTWRITEBYTECODE": "1"}
        command = [
            sys.executable,
            "-m",
            "pytest",
            "tests/core",
            "-x",
            "-q",
            "-p",
            "no:cacheprovider",
            PROFILE,
        ]
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return done.returncode == 1 and bool(failed), failed[0].split(" - ")[0] if failed else ""


def main() -> int:
    """Command line entry."""
    wanted = set(sys.argv[1:])
    unknown = wanted - {bug.name for bug in BUGS}
    if unknown:
        raise SystemExit(f"no such bug: {', '.join(sorted(unknown))}")
    survivors = []
    for bug in BUGS:
        if wanted and bug.name not in wanted:
            continue
        caught, by = is_caught(bug)
        print(f"{'caught  ' if caught else 'SURVIVED'} {bug.name:28s} {by}", flush=True)
        if not caught:
            survivors.append(bug.name)
    print(f"{len(survivors)} survived" if survivors else "every bug was caught")
    return 1 if survivors else 0


if __name__ == "__main__":
    raise SystemExit(main())
