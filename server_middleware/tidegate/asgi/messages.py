"""What people read when a request is refused, in English and in Chinese.

Law of this file: every reason has both; programs read `error.reason`, never these sentences.
"""

from __future__ import annotations

from tidegate.core.decisions import Reason, Refuse

_AGAIN = (" Retry in {seconds} s.", "请在 {seconds} 秒后重试。")

_TEXTS: dict[Reason, tuple[str, str]] = {
    Reason.RATE_LIMITED: ("Your request rate limit is reached.", "已达到您的请求速率上限。"),
    Reason.TOKEN_RATE_LIMITED: ("Your token rate limit is reached.", "已达到您的令牌（token）速率上限。"),
    Reason.QUEUE_FULL: ("The server is busy and its queue is full.", "服务器繁忙，等待队列已满。"),
    Reason.TENANT_QUEUE_FULL: (
        "The server is busy and your share of its queue is full.",
        "服务器繁忙，您在等待队列中的名额已满。",
    ),
    Reason.WAIT_EXPIRED: (
        "The server is busy; no capacity became free in the time this request may wait.",
        "服务器繁忙，在该请求允许的等待时间内没有空出容量。",
    ),
    Reason.WAIT_TOO_LONG: (
        "The server is busy; the wait would be longer than this request allows.",
        "服务器繁忙，预计等待时间超过该请求允许的时长。",
    ),
    Reason.DISPLACED: (
        "The server is busy and gave this place in the queue to more urgent work.",
        "服务器繁忙，该排队位置已让给更紧急的请求。",
    ),
    Reason.TOO_EARLY: (
        "This retry came before the time it was given; the place is kept.",
        "重试早于约定的时间，您的位置仍然保留。",
    ),
    Reason.SUPERSEDED: (
        "A later attempt of the same request has taken this one's place.",
        "同一请求的后一次尝试已取代本次请求。",
    ),
    Reason.KV_BLIND: (
        "The server cannot see how loaded its engine is and takes no new work for now.",
        "服务器暂时无法得知引擎负载，目前不接受新请求。",
    ),
    Reason.ASLEEP: ("The model is asleep.", "模型处于休眠状态。"),
    Reason.PROMPT_TOO_LARGE: (
        "The prompt is larger than this server can ever hold.",
        "提示词超出本服务器所能容纳的上限。",
    ),
    Reason.COST_ABOVE_BURST: (
        "This request costs more than your limit ever allows at once.",
        "该请求的开销超过您的配额单次允许的上限。",
    ),
    Reason.DRAINING: ("The server is shutting down.", "服务器正在关闭。"),
    Reason.KEYS_UNAVAILABLE: (
        "API keys cannot be checked at the moment.",
        "暂时无法验证 API 密钥。",
    ),
    Reason.GATE_FAULT: (
        "Admission control has failed and is set to stay closed.",
        "准入控制出现故障，且配置为保持关闭。",
    ),
}


def message(refuse: Refuse, seconds: int | str | None, chinese: bool) -> str:
    """The sentence for a refusal; `seconds` is what Retry-After says, `None` for a permanent one."""
    language = 1 if chinese else 0
    text = _TEXTS[refuse.reason][language]
    if seconds is not None:
        text += _AGAIN[language].format(seconds=seconds)
    if refuse.detail:
        text += ("" if chinese else " ") + refuse.detail
    return text
