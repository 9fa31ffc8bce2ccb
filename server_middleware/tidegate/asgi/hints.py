"""What the length of an answer depends on, and which conversation a request belongs to.

Law of this file: hints have few distinct values, since each is a key under which lengths are learnt.
"""

from __future__ import annotations

from tidegate.asgi.decode import Fields, as_bool, as_fields, as_int

_EFFORTS = frozenset({"none", "minimal", "low", "medium", "high", "xhigh", "max", "true", "false"})
_SESSION_FIELDS = (
    "session_id",
    "conversation_id",
    "conversation",
    "previous_response_id",
    "prompt_cache_key",
)
_SESSIONS = frozenset({*_SESSION_FIELDS, "session_params"})
_GRAMMARS = ("json_schema", "regex", "ebnf", "grammar", "structured_outputs")
_THINKING = frozenset(
    {"reasoning_effort", "reasoning", "output_config", "think", "chat_template_kwargs", "thinking"}
)
_HINTS = _THINKING | {*_GRAMMARS, "tools", "response_format", "format", "ignore_eos"}
_KEPT = frozenset({"previous_response_id", "conversation", "session_params"})
_LONGEST_SESSION = 128


def length_hint(fields: Fields, parameters: Fields) -> str:
    """Thinking, tools, structured output and ignored end of sequence, as one short string."""
    if parameters is fields and _HINTS.isdisjoint(fields):
        return ""
    hints = [_thinking(fields)]
    if fields.get("tools") and fields.get("tool_choice") != "none":
        hints.append("tools")
    if any(fields.get(name) for name in ("response_format", "structured_outputs", "format")) or any(
        parameters.get(name) for name in _GRAMMARS
    ):
        hints.append("structured")
    if as_bool(parameters.get("ignore_eos")):
        hints.append("ignore_eos")
    return ",".join(filter(None, hints))


def _thinking(fields: Fields) -> str:
    if _THINKING.isdisjoint(fields):
        return ""
    template = as_fields(fields.get("chat_template_kwargs"))
    thinking = as_fields(fields.get("thinking"))
    for effort in (
        fields.get("reasoning_effort"),
        as_fields(fields.get("reasoning")).get("effort"),
        as_fields(fields.get("output_config")).get("effort"),
        fields.get("think"),
        template.get("enable_thinking"),
        template.get("thinking"),
    ):
        if effort is not None:
            name = str(effort).lower() if isinstance(effort, (str, bool)) else "other"
            return f"thinking={name if name in _EFFORTS else 'other'}"
    budget = as_int(thinking.get("budget_tokens"))
    if budget is not None and budget > 0:
        return f"thinking=2^{budget.bit_length()}"
    return "thinking=true" if thinking.get("type") in ("enabled", "adaptive") else ""


def session_key(fields: Fields) -> str | None:
    """The conversation the body names, if any."""
    if _SESSIONS.isdisjoint(fields):
        return None
    for name in _SESSION_FIELDS:
        value = fields.get(name)
        if isinstance(value, dict):
            value = value.get("id")
        if _is_key(value):
            return str(value)
    value = as_fields(fields.get("session_params")).get("id")
    return str(value) if _is_key(value) else None


def response_before(fields: Fields) -> str | None:
    """The response whose conversation the engine is to go on with."""
    name = fields.get("previous_response_id")
    return name if isinstance(name, str) and name else None


def continues(fields: Fields) -> bool:
    """Whether the engine puts more into the prompt than the body holds: what was said before."""
    return not _KEPT.isdisjoint(fields) and any(fields.get(name) for name in _KEPT)


def _is_key(value: object) -> bool:
    return isinstance(value, str) and 0 < len(value) <= _LONGEST_SESSION and value.isprintable()
