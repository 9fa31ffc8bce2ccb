"""What is guarded, whatever the spelling; and that nothing else is."""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route

from tidegate.asgi.classify import Dialect, GuardOptions, RouteTable, segments

GUARDED = {
    "/v1/completions": Dialect.OPENAI_COMPLETIONS,
    "/v1/chat/completions": Dialect.OPENAI_CHAT,
    "/v1/chat/completions/batch": Dialect.VLLM_CHAT_BATCH,
    "/v1/responses": Dialect.OPENAI_RESPONSES,
    "/v1/embeddings": Dialect.OPENAI_EMBEDDINGS,
    "/v2/embed": Dialect.OPENAI_EMBEDDINGS,
    "/v1/audio/transcriptions": Dialect.OPENAI_AUDIO,
    "/v1/audio/translations": Dialect.OPENAI_AUDIO,
    "/v1/audio/speech": Dialect.OPENAI_AUDIO,
    "/v1/messages": Dialect.ANTHROPIC_MESSAGES,
    "/inference/v1/generate": Dialect.VLLM_TOKENS,
    "/pooling": Dialect.VLLM_POOLING,
    "/classify": Dialect.VLLM_POOLING,
    "/v1/classify": Dialect.VLLM_POOLING,
    "/score": Dialect.VLLM_POOLING,
    "/v1/score": Dialect.VLLM_POOLING,
    "/rerank": Dialect.VLLM_POOLING,
    "/v1/rerank": Dialect.VLLM_POOLING,
    "/v2/rerank": Dialect.VLLM_POOLING,
    "/encode": Dialect.VLLM_POOLING,
    "/v1/systemone": Dialect.VLLM_DECISIONS,
    "/v1/decisions": Dialect.VLLM_DECISIONS,
    "/generative_scoring": Dialect.VLLM_DECISIONS,
    "/cohere/v2/chat": Dialect.COHERE_CHAT,
    "/api/chat": Dialect.OLLAMA,
    "/api/generate": Dialect.OLLAMA,
    "/invocations": Dialect.INVOCATIONS,
    "/vertex_generate": Dialect.INVOCATIONS,
    "/generate": Dialect.SGLANG_GENERATE,
    "/generate_stream": Dialect.TGI_GENERATE,
    "/openai/deployments/gpt/chat/completions": Dialect.OPENAI_CHAT,
}
UNGUARDED_POSTS = (
    "/tokenize",
    "/v1/tokenize",
    "/detokenize",
    "/v1/chat/completions/render",
    "/v1/completions/derender",
    "/v1/messages/count_tokens",
    "/v1/responses/resp_1/cancel",
    "/abort_request",
    "/abort_requests",
    "/v1/load_lora_adapter",
    "/ping",
    "/health",
    "/metrics",
    "/sleep",
    "/v1/models",
    "/",
    "",
)


def scope(path: str, method: str = "POST", **more: Any) -> dict[str, Any]:
    return {"type": "http", "method": method, "path": path, "headers": [], **more}


@pytest.mark.parametrize("path", GUARDED)
def test_inference_routes_are_guarded_with_their_dialect(path: str) -> None:
    """Every inference route of the engines is guarded (case M9: also outside /v1)."""
    route = RouteTable().match(scope(path))
    assert route is not None
    assert route.dialect is GUARDED[path]


@pytest.mark.parametrize("method", ["PUT", "PATCH", "post"])
def test_methods_that_carry_a_body_are_guarded_like_post(method: str) -> None:
    """SGLang takes PUT where others take POST."""
    assert RouteTable().match(scope("/generate", method)) is not None


@pytest.mark.parametrize("path", ["/health", "/metrics", "/v1/models", "/docs", *GUARDED])
@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS", "DELETE"])
def test_other_methods_are_never_guarded(path: str, method: str) -> None:
    """Health, metrics, models and preflights stay outside the net, on every path (cases M4, R8)."""
    assert RouteTable().match(scope(path, method)) is None


@pytest.mark.parametrize("path", UNGUARDED_POSTS)
def test_posts_that_load_no_engine_are_not_guarded(path: str) -> None:
    """Tokenizing, aborting, cancelling and administration pass."""
    assert RouteTable().match(scope(path)) is None


@pytest.mark.parametrize(
    "path",
    [
        "/gw/v1/chat/completions",
        "/a/b/c/v1/chat/completions",
        "/v1/chat/completions/",
        "//v1//chat///completions",
        "/v1/./chat/completions",
        "/v1/models/../chat/completions",
        "/v1/chat/models/../completions",
        "/v1/chat/a/b/%2e%2e/../completions",
        "/V1/Chat/Completions",
        "/v1/chat%2Fcompletions",
        "/v1/chat%252fcompletions",
        "/v1/chat/completions\n",
        "/v1/chat/completions%0A",
        "/v1/chat/completions%20",
        "/v1/chat/completions;jsessionid=1",
        "/v1\\chat\\completions",
        "http://host/v1/chat/completions",
        "/" + "x" * 10_000 + "/v1/chat/completions",
    ],
)
def test_no_spelling_gets_round_the_guard(path: str) -> None:
    """Prefixes, slashes, dots, case, percent signs, blanks and parameters change nothing."""
    route = RouteTable().match(scope(path))
    assert route is not None
    assert route.dialect is Dialect.OPENAI_CHAT


@pytest.mark.parametrize("root_path", ["", "/gw", "/v1"])
@pytest.mark.parametrize("with_prefix", [True, False])
def test_root_path_neither_hides_nor_adds_routes(root_path: str, with_prefix: bool) -> None:
    """Servers differ in whether `path` carries the root path; both sets hold either way (case M5)."""
    prefix = root_path if with_prefix else ""
    table = RouteTable()
    assert table.match(scope(prefix + "/v1/completions", root_path=root_path)) is not None
    assert table.match(scope(prefix + "/health", root_path=root_path)) is None
    assert table.match(scope(prefix + "/tokenize", root_path=root_path)) is None


def test_unknown_posts_are_guarded_on_request() -> None:
    """`guard_unknown_posts` guards what nobody has heard of, but not what loads no engine."""
    table = RouteTable(GuardOptions(guard_unknown_posts=True))
    assert (route := table.match(scope("/predict"))) is not None
    assert route.dialect is Dialect.UNKNOWN_POST
    assert table.match(scope("/")) is not None
    for path in ("/tokenize", "/v1/chat/completions/render", "/v1/responses/r/cancel", "/abort_request"):
        assert table.match(scope(path)) is None
    assert table.match(scope("/predict", "GET")) is None


@pytest.mark.parametrize(
    "path",
    [
        "/resume",
        "/continue_generation",
        "/resume_memory_occupation",
        "/wake_up",
        "/update_weights_from_disk",
        "/begin_weight_update",
        "/hicache/storage-backend/clear",
        "/fault_tolerance/apply",
        "/start_expert_distribution_record",
        "/collective_rpc",
        "/abort_request",
    ],
)
def test_the_engines_administration_is_never_queued(path: str) -> None:
    """Even when unknown POSTs are guarded: a full gate must not hold back what would empty it."""
    assert RouteTable(GuardOptions(guard_unknown_posts=True)).match(scope(path)) is None


def test_extra_guarded_and_exempt_paths() -> None:
    """The operator adds and removes paths; exempt wins, in every spelling."""
    table = RouteTable(GuardOptions(extra_guarded=("/predict",), exempt=("/v1/embeddings",)))
    assert (route := table.match(scope("/models/x/predict"))) is not None
    assert route.label == "/predict"
    assert table.match(scope("/gw//v1/embeddings/")) is None
    assert table.match(scope("/v1/completions")) is not None


def test_empty_extra_path_is_refused_with_a_way_out() -> None:
    """A path without a segment would guard everything or nothing."""
    with pytest.raises(ValidationError, match="names no path segment"):
        GuardOptions(exempt=("//",))


@pytest.mark.parametrize(
    ("kind", "path", "guarded"),
    [
        ("websocket", "/v1/realtime", True),
        ("websocket", "/gw/v1/realtime/", True),
        ("websocket", "/chat", False),
        ("lifespan", "/v1/completions", False),
        ("telepathy", "/v1/completions", False),
    ],
)
def test_other_scopes(kind: str, path: str, guarded: bool) -> None:
    """An inference WebSocket takes a lease; lifespan and unknown scopes pass (case M7)."""
    table = RouteTable(GuardOptions(guard_unknown_posts=True))
    assert (table.match({"type": kind, "path": path, "headers": []}) is not None) is guarded


def test_scope_without_a_path_is_not_guarded() -> None:
    """A broken scope is the app's business, not an error of ours."""
    assert RouteTable().match({"type": "http", "method": "POST"}) is None


def test_labels_are_a_bounded_set() -> None:
    """Caller-chosen prefixes never reach a metric label (case L13)."""
    table = RouteTable(GuardOptions(guard_unknown_posts=True))
    routes = [table.match(scope(f"/{n}{path}")) for n in range(20) for path in (*GUARDED, "/what")]
    assert len({route.label for route in routes if route}) <= len(GUARDED) + 1


@given(st.text(max_size=60))
@settings(deadline=None)
def test_any_path_is_classified_without_an_error(path: str) -> None:
    """No path raises, and equal readings of it agree."""
    RouteTable().match(scope(path))
    assert segments(path) == segments(path + "/") == segments("//" + path)


def _starlette() -> Starlette:
    async def inner(request: object) -> PlainTextResponse:
        return PlainTextResponse("inference")

    names = ["/v1/chat/completions", "/v1/completions", "/generate", "/invocations"]
    routes = [Route(name, inner, methods=["POST"]) for name in names]
    return Starlette(routes=[*routes, Mount("/llm", routes=routes)])


_PARTS = ("/", "//", "v1", "V1", "chat", "completions", "generate", "invocations", "llm", ".", "..", "\\")
_ENCODED = ("%2F", "%0A", "%2e", "%0D", ";a=b", "%20", "%25", "%00", "%2f%2e%2e")
_SPELLINGS = st.lists(
    st.sampled_from((*_PARTS, *_ENCODED)),
    min_size=1,
    max_size=9,
).map("".join)


@given(_SPELLINGS | st.sampled_from([quote(path) + tail for path in GUARDED for tail in ("", "%0A", "/")]))
@settings(max_examples=150, deadline=None)
def test_whatever_starlette_routes_to_inference_is_guarded(spelling: str) -> None:
    """Property: if the real router reaches an inference endpoint, the table guards that request."""
    from urllib.parse import unquote

    path = unquote("/" + spelling.lstrip("/"))
    request = {**scope(path), "query_string": b"", "server": ("test", 80), "scheme": "http"}
    bodies: list[bytes] = []

    async def run() -> None:
        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: Any) -> None:
            bodies.append(message.get("body", b""))

        await _APP(dict(request), receive, send)

    asyncio.run(run())
    if b"inference" in bodies:
        assert RouteTable().match(request) is not None


_APP = _starlette()
