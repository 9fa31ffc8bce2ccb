"""What the app that Tidegate runs inside knows of its engine.

Law of this file: it looks, and what is not there is unknown. vLLM's API server keeps its whole
configuration in `app.state` and publishes no context limit among its metrics.
"""

from __future__ import annotations

_WAY = ("state", "vllm_config", "model_config", "max_model_len")


def context_limit_tokens(host_app: object) -> int | None:
    """Return the longest prompt and answer together that the engine of this app takes, `None`: unknown.

    `host_app` is the app an ASGI server hands over in the scope as `app`.
    """
    found: object = host_app
    for name in _WAY:
        found = getattr(found, name, None)
    return found if type(found) is int and found > 0 else None
