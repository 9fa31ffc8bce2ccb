"""`tidegate top`: the operator's page in a terminal.

Law of this file: it reads `state.json` once a second and draws; it knows only what that JSON says, so
it watches any Tidegate, here or elsewhere. Names from outside are shown as text, never as markup.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any
from urllib.parse import urlsplit

import httpx
from rich import box
from rich.columns import Columns
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

REFRESH_S = 1.0
TIMEOUT_S = 3.0
BAR_CELLS = 44
RECENT_POINTS = 5  # seconds over which a rate is taken
_SPARKS = "▁▂▃▄▅▆▇█"

State = dict[str, Any]


class NoState(Exception):
    """The server gave no state; the message says why and what to do."""


def state_url(url: str) -> str:
    """Where the state of the gate at `url` is read: a bare server address means its default console."""
    address = url if "://" in url else f"http://{url}"
    path = urlsplit(address).path.rstrip("/")
    if path.endswith("/state.json"):
        return address
    return address.rstrip("/") + ("/state.json" if path else "/tidegate/state.json")


def read_state(client: httpx.Client, url: str) -> State:
    """One reading.

    Raises:
        NoState: nothing usable came back.
    """
    try:
        response = client.get(url)
    except httpx.HTTPError as error:
        raise NoState(f"{url} does not answer ({error}). Is the server up?") from error
    if response.status_code == httpx.codes.UNAUTHORIZED:
        raise NoState(f"{url} wants the admin token (console.admin_token): pass --token, with the right one.")
    try:
        state = response.json() if response.is_success else None
    except ValueError:
        state = None
    if not isinstance(state, dict) or "instances" not in state:
        raise NoState(
            f"{url} answered {response.status_code} but no state. Is it the console's address, "
            "and are you on the same machine or do you have its token?"
        )
    return state


def render(state: State) -> RenderableType:
    """One screen."""
    return Group(
        _headline(state),
        *(_tank(instance) for instance in state["instances"]),
        Columns([_classes(state), _tenants(state), _refusals(state)], padding=(0, 1)),
        _trends(state.get("history") or {}),
    )


def _headline(state: State) -> Text:
    poor = sorted({row["state"] for row in state["instances"]} - {"fresh"})
    if poor:  # as on the page: nobody is held back at the moment is no news beside it
        word, style = f"signal {', '.join(poor)}", "bold yellow"
    else:
        word, style = ("open", "bold green") if state["is_open"] else ("holding", "bold red")
    line = Text.assemble(("Tidegate ", "bold"), (f" {word} ", f"{style} reverse"))
    if state["faults"]:
        line.append(f"  {state['faults']} gate faults", "bold red")
    line.append(f"  {state['mode']} mode", "" if state["mode"] == "enforce" else "bold yellow")
    if state.get("workers", 1) > 1:
        line.append(f"  one of {state['workers']} workers")
    line.append(
        f"   running {state['running']}   waiting {state['queued']}"
        f"{_admissions(state)}   {state['booked_slots']} slots booked"
    )
    return line


def _admissions(state: State) -> str:
    """Of the last seconds: a learnt rate would go on while nothing moves."""
    lately = (state.get("history") or {}).get("admitted_per_s", [])[-RECENT_POINTS:]
    return f"   {sum(lately) / len(lately):.1f} admitted/s" if lately else ""


def _tank(row: State) -> Panel:
    level, mark = row["level"], row["high_watermark"]
    style = "cyan" if level is None or level < mark - 0.12 else "yellow" if level < mark else "red"
    filled = round(BAR_CELLS * min(1.0, level or 0.0))
    bar = Text("█" * filled + "·" * (BAR_CELLS - filled), style)
    bar.stylize("bold white on red", *_cell(mark))
    if row["projected_peak"] is not None:
        bar.stylize("bold black on magenta", *_cell(row["projected_peak"]))
    shown = "  ?  " if level is None else f"{level:5.1%}"
    figures = (
        f"watermark {mark:.0%}, peak {_share(row['projected_peak'])}, {row['leases']} leases, "
        f"{row['preemptions']:.0f} preemptions, margin {row['margin']:.1%}"
    )
    age = "never read" if row["age_s"] is None else f"{row['age_s']:.1f} s old"
    body = Text.assemble(bar, f"  {shown}\n", (figures, "dim"))
    if row.get("capacity_disputed"):
        body.append(f"\ncapacity disputed: {_dispute(row)}", "bold yellow")
    title = Text.assemble(row["name"], f" - {row['state']}, {age}")
    return Panel(body, title=title, title_align="left", box=box.ROUNDED, expand=False)


def _dispute(row: State) -> str:
    stated, learnt = row["stated_capacity_tokens"], row["learnt_capacity_tokens"]
    return f"the engine states {_tokens(stated)}, its level says {_tokens(learnt)}"


def _tokens(value: float | None) -> str:
    return "unknown" if value is None else f"{value:,.0f} tokens"


def _cell(share: float) -> tuple[int, int]:
    at = min(BAR_CELLS - 1, int(BAR_CELLS * share))
    return at, at + 1


def _share(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.0%}"


def _table(title: str, heads: Iterable[str], rows: Iterable[Iterable[str]]) -> Table:
    heads = list(heads)
    table = Table(
        title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1), show_header=any(heads)
    )
    for index, head in enumerate(heads):
        table.add_column(head, justify="left" if index == 0 else "right", max_width=24)
    for cells in rows:
        table.add_row(*(Text(cell) for cell in cells))
    return table


def _classes(state: State) -> Table:
    rows = (
        (row["name"], str(row["running"]), str(row["queued"]), f"{row['oldest_wait_s']:.1f} s")
        for row in state["classes"]
    )
    return _table("Classes", ("class", "running", "waiting", "oldest"), rows)


def _tenants(state: State) -> Table:
    rows = [
        (row["name"], str(row["running"]), str(row["queued"]), str(row.get("refused_last_minute", 0)))
        for row in state["tenants"][:8]
    ]
    hidden = len(state["tenants"]) - len(rows) + state["tenants_hidden"]
    if hidden > 0:
        rows.append((f"and {hidden} more", "", "", ""))
    return _table("Tenants", ("tenant", "running", "waiting", "refused/min"), rows)


def _refusals(state: State) -> Table:
    rows = ((reason.replace("_", " "), str(count)) for reason, count in state["refused"].items())
    return _table("Refusals", ("reason", "count"), rows)


def _trends(history: dict[str, list[float | None]]) -> Table:
    names = {"level": "level", "queued": "waiting", "refused_per_s": "refused/s"}
    rows = ((label, _spark(history.get(name, []))) for name, label in names.items())
    return _table("Last five minutes", ("", ""), rows)


def _spark(values: list[float | None], cells: int = 20) -> str:
    """The highest value of each of `cells` equal spans, as a row of bars; a gap stays a gap."""
    if not values:
        return "no history yet"
    size = max(1, -(-len(values) // cells))
    spans = [values[start : start + size] for start in range(0, len(values), size)]
    tops = [max((value for value in span if value is not None), default=None) for span in spans]
    highest = max((top for top in tops if top is not None), default=0.0) or 1.0
    return "".join(" " if top is None else _SPARKS[min(7, int(top / highest * 7.999))] for top in tops)


def top(
    url: str,
    token: str | None = None,
    *,
    console: Console | None = None,
    sleep: Callable[[float], None] = time.sleep,
    screens: int | None = None,
) -> int:
    """Watch the gate at `url` until interrupted; returns the exit code.

    Args:
        url: the server, or the address of its console.
        token: the console's admin token, needed from other machines.
        screens: stop after so many; `None`: never.
    """
    console = console or Console()
    address = state_url(url)
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    with httpx.Client(headers=headers, timeout=TIMEOUT_S) as client:
        try:
            screen = render(read_state(client, address))
        except NoState as error:
            console.print(Text(f"tidegate: {error}"), style="red")
            return 1
        with Live(screen, console=console, auto_refresh=False, screen=console.is_terminal) as live:
            shown = 1
            while screens is None or shown < screens:
                sleep(REFRESH_S)
                live.update(_next(client, address), refresh=True)
                shown += 1
    return 0


def _next(client: httpx.Client, address: str) -> RenderableType:
    try:
        return render(read_state(client, address))
    except NoState as error:
        return Panel(Text(f"{error} Trying again."), title="no news", border_style="red")
