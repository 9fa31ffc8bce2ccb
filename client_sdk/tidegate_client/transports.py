"""The transport of either colour, for any library with httpx's interface.

Law: no behaviour here; a transport is a driver with a library's types around it. What httpx and httpx2 add is
their names (`httpx_transports`, `httpx2`).
"""

from __future__ import annotations

from collections.abc import Coroutine
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeVar

from .board import Board
from .core.policy import RetryPolicy
from .drivers import AsyncDriver, SyncDriver
from .library import Library
from .setup import set_up
from .timebase import Timebase
from .waits import OnWait

if TYPE_CHECKING:
    from typing_extensions import Self

RequestT = TypeVar("RequestT")
ResponseT = TypeVar("ResponseT")
RequestContraT = TypeVar("RequestContraT", contravariant=True)
ResponseCoT = TypeVar("ResponseCoT", covariant=True)


class SyncInner(Protocol[RequestContraT, ResponseCoT]):
    """What a sync transport can wrap: the library's own, or any other of its kind."""

    def handle_request(self, request: RequestContraT) -> ResponseCoT:
        """Send one request."""

    def close(self) -> None:
        """Let go of connections."""


class AsyncInner(Protocol[RequestContraT, ResponseCoT]):
    """What an async transport can wrap."""

    async def handle_async_request(self, request: RequestContraT) -> ResponseCoT:
        """Send one request."""

    async def aclose(self) -> None:
        """Let go of connections."""


class SyncRetrying(Generic[RequestT, ResponseT]):
    """Waits as the server asks and sends refused requests again, on the caller's thread.

    Args:
        transport: the transport to wrap; the library's `HTTPTransport()` by default. With a transport given,
            the library's client ignores the proxies of the environment: use `Client()` to keep them. One that
            retries already is replaced: what is not given here is as it was there.
        policy: what the caller is willing to do; `RetryPolicy()` by default.
        on_wait: called with a WaitEvent when a call starts to wait.
        board: what is known of the servers; the one of the process by default.
        timebase: clock, randomness and sleep; for tests.
    """

    _library: ClassVar[Library]
    _default: ClassVar[Any]  # makes the transport to wrap, where none is given

    def __init__(
        self,
        transport: SyncInner[RequestT, ResponseT] | None = None,
        *,
        policy: RetryPolicy | None = None,
        on_wait: OnWait | None = None,
        board: Board | None = None,
        timebase: Timebase | None = None,
    ) -> None:
        inner: Any = transport or self._default()
        former = None
        if isinstance(inner, SyncRetrying):
            # Two layers would multiply their attempts.
            inner, former = inner._inner, inner._setup  # noqa: SLF001
        self._inner: Any = inner
        self._setup = set_up(self._library, policy, on_wait, board, timebase, former)
        self._driver = SyncDriver(self._setup, inner)

    def handle_request(self, request: RequestT) -> ResponseT:
        """Send `request` until its outcome can be delivered.

        Raises:
            RateLimited: the refusal stands and the policy asks for errors.
            TransportError: (of the library) as the wrapped transport raises it.
        """
        response: ResponseT = self._driver.handle(request)
        return response

    def __enter__(self) -> Self:
        self._inner.__enter__()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None = None,
        exc_value: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None:
        self._driver.close()
        self._inner.__exit__(exc_type, exc_value, traceback)

    def close(self) -> None:
        """Close the wrapped transport; calls that wait end with a RuntimeError."""
        self._driver.close()
        self._inner.close()


class AsyncRetrying(Generic[RequestT, ResponseT]):
    """Waits as the server asks and sends refused requests again, on an event loop.

    Args:
        transport: the transport to wrap; the library's `AsyncHTTPTransport()` by default. With a transport
            given, the library's client ignores the proxies of the environment: use `AsyncClient()` to keep
            them. One that retries already is replaced: what is not given here is as it was there.
        policy: what the caller is willing to do; `RetryPolicy()` by default.
        on_wait: called with a WaitEvent when a call starts to wait.
        board: what is known of the servers; the one of the process by default.
        timebase: clock, randomness and sleep; for tests.
    """

    _library: ClassVar[Library]
    _default: ClassVar[Any]  # makes the transport to wrap, where none is given

    def __init__(
        self,
        transport: AsyncInner[RequestT, ResponseT] | None = None,
        *,
        policy: RetryPolicy | None = None,
        on_wait: OnWait | None = None,
        board: Board | None = None,
        timebase: Timebase | None = None,
    ) -> None:
        inner: Any = transport or self._default()
        former = None
        if isinstance(inner, AsyncRetrying):
            # Two layers would multiply their attempts.
            inner, former = inner._inner, inner._setup  # noqa: SLF001
        self._inner: Any = inner
        self._setup = set_up(self._library, policy, on_wait, board, timebase, former)
        self._driver = AsyncDriver(self._setup, inner)

    def handle_async_request(self, request: RequestT) -> Coroutine[Any, Any, ResponseT]:
        """Send `request` until its outcome can be delivered, when awaited.

        Raises:
            RateLimited: the refusal stands and the policy asks for errors.
            TransportError: (of the library) as the wrapped transport raises it.
        """
        return self._driver.handle(request)

    async def __aenter__(self) -> Self:
        await self._inner.__aenter__()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None = None,
        exc_value: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None:
        self._driver.close()
        await self._inner.__aexit__(exc_type, exc_value, traceback)

    async def aclose(self) -> None:
        """Close the wrapped transport; calls that wait end with a RuntimeError."""
        self._driver.close()
        await self._inner.aclose()
