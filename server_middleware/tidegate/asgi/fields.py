"""Fields with which a caller could go round the gate or blow up memory: allowed, cut or refused.

Law of this file: nothing is changed but the named fields; every other byte of their values goes to the
app as it came. A field that is only dropped or lowered changes no answer's meaning (the engine's
scheduling priority); where cutting would, the request is refused with the field's name.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from tidegate.asgi.cost import MOST_PARAMETERS, Cost
from tidegate.asgi.decode import Fields, as_bool, as_int
from tidegate.asgi.rewrite import Change
from tidegate.asgi.types import HeaderList, Headers, without_headers

PRIORITY_HEADERS = frozenset({b"x-vllm-priority", b"x-override-priority"})
"""Headers by which vLLM and SGLang take a scheduling priority from the caller."""
_NESTED = ("sampling_params", "parameters")
_PARALLEL = ("n", "best_of", "beam_width")
_OF_INTEREST = frozenset(
    {*_PARALLEL, *_NESTED, "priority", "use_beam_search", "echo", "return_logprob", "prompt_logprobs"}
    | {"decoder_input_details"}
)


class FieldProblem(ValueError):
    """The request asks for something this server does not allow; answer 400 naming `param`."""

    def __init__(self, message: str, param: str) -> None:
        super().__init__(message)
        self.param = param


class FieldPolicy(BaseModel):
    """What callers may ask of the engine besides the answer itself."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    priority: Literal["strip", "reject", "allow"] = "strip"
    """The engine's own scheduling priority, in body or header: the order is the gate's business."""
    prompt_logprobs: Literal["bounded", "reject", "allow"] = "bounded"
    """Log-probabilities of the prompt; each token costs the engine a row over the whole vocabulary."""
    prompt_logprobs_max_tokens: int = Field(default=2048, ge=0)
    """With `bounded`: the longest prompt (by estimate) for which they may be asked."""
    max_parallel: int = Field(default=16, ge=1)
    """Largest `n`, `best_of` or beam width."""
    on_excess_parallel: Literal["reject", "clamp"] = "reject"
    beam_search: Literal["allow", "reject"] = "allow"

    def headers(self, headers: Headers) -> HeaderList | None:
        """The request headers without the engine's priority; `None` when nothing has to change.

        Raises:
            FieldProblem: the policy is to reject.
        """
        if self.priority == "allow" or not names_priority(headers):
            return None
        if self.priority == "reject":
            raise FieldProblem("The engine's priority may not be set here: remove the header.", "priority")
        return without_headers(headers, PRIORITY_HEADERS)

    def changes(self, fields: Fields, cost: Cost) -> list[Change]:
        """What must be rewritten.

        Raises:
            FieldProblem: something asked for is not allowed.
        """
        if _OF_INTEREST.isdisjoint(fields):
            return []
        found: list[Change] = []
        if self.priority != "allow" and fields.get("priority") is not None:
            if self.priority == "reject":
                raise FieldProblem("'priority' may not be set here: remove it.", "priority")
            found.append(Change(None, "priority", None))
        for nested, part in _parts(fields):
            found += self._parallel_changes(nested, part)
            if self.beam_search == "reject" and _uses_beams(part):
                raise FieldProblem("Beam search is not allowed here.", "use_beam_search")
        self._check_prompt_logprobs(fields, cost)
        return found

    def _parallel_changes(self, nested: str | None, part: Fields) -> list[Change]:
        found: list[Change] = []
        for name in _PARALLEL:
            asked = as_int(part.get(name))
            if asked is None or asked <= self.max_parallel:
                continue
            if self.on_excess_parallel == "reject":
                raise FieldProblem(f"'{name}' is {asked}; at most {self.max_parallel} is allowed here.", name)
            found.append(Change(nested, name, self.max_parallel))
        return found

    def _check_prompt_logprobs(self, fields: Fields, cost: Cost) -> None:
        if self.prompt_logprobs == "allow":
            return
        field = _prompt_logprobs_field(fields)
        if field is None:
            return
        if self.prompt_logprobs == "reject":
            raise FieldProblem(f"'{field}': log-probabilities of the prompt are not allowed here.", field)
        tokens = cost.prompt_tokens()
        if tokens > self.prompt_logprobs_max_tokens:
            raise FieldProblem(
                f"'{field}' asks for log-probabilities of a prompt of about {tokens:.0f} tokens; "
                f"at most {self.prompt_logprobs_max_tokens} are allowed here.",
                field,
            )


def names_priority(headers: Headers) -> bool:
    """Whether the engine's priority is among the headers."""
    return not PRIORITY_HEADERS.isdisjoint([name.lower() for name, _ in headers])


def _parts(fields: Fields) -> list[tuple[str | None, Fields]]:
    """The body and the objects nested in it that hold sampling parameters."""
    parts: list[tuple[str | None, Fields]] = [(None, fields)]
    for name in _NESTED:
        value = fields.get(name)
        listed = value if isinstance(value, list) else [value]
        if len(listed) > MOST_PARAMETERS:
            raise FieldProblem(f"'{name}' may hold at most {MOST_PARAMETERS} objects.", name)
        parts += [(name, each) for each in listed if isinstance(each, dict)]
    return parts


def _uses_beams(part: Fields) -> bool:
    return as_bool(part.get("use_beam_search")) or (as_int(part.get("beam_width")) or 0) > 1


def _prompt_logprobs_field(fields: Fields) -> str | None:
    """The field by which log-probabilities of the prompt are asked for, in any engine's way."""
    for _, part in _parts(fields):
        if part.get("prompt_logprobs") is not None:
            return "prompt_logprobs"
        if as_bool(part.get("decoder_input_details")):
            return "decoder_input_details"
    logprobs = fields.get("logprobs")
    wants_logprobs = logprobs is not None and logprobs is not False  # 0 asks for the chosen token's
    wants_logprobs = wants_logprobs or (as_int(fields.get("top_logprobs")) or 0) > 0
    if as_bool(fields.get("echo")) and wants_logprobs:
        return "echo"
    starts = fields.get("logprob_start_len")
    if as_bool(fields.get("return_logprob")) and any(
        (as_int(start) or 0) >= 0
        for start in (starts if isinstance(starts, list) else [starts])
        if start is not None
    ):
        return "logprob_start_len"
    return None
