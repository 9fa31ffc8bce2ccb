"""The real engine for the tests of this directory: built once, bare or gated, one at a time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from benchmarks.engine_bed import ROOT, Engine, EngineFailed, build_environment, running_engine, serve_command


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests without an engine of ours first (some start their own), then bare, then gated: one start each."""
    items.sort(key=lambda item: _KINDS.index(_kind(item)))


_KINDS = (None, "bare", "gated")


def _kind(item: pytest.Item) -> str | None:
    if item.get_closest_marker("engine") is None:
        return None
    return next((kind for kind in _KINDS[1:] if kind in getattr(item, "fixturenames", ())), None)


class Bed:
    """Starts the kind of engine a test asks for and stops the other: two would share two cores."""

    def __init__(self, home: Path, logs: Path) -> None:
        self._home = home
        self._logs = logs
        self._kind: bool | None = None
        self._engine: Engine | None = None
        self._failed: dict[bool, EngineFailed] = {}
        self._stack = ExitStack()

    def engine(self, *, gated: bool) -> Engine:
        """The engine, idle. The gated one is started by examples/vllm, so that the example is tested too."""
        if gated in self._failed:
            raise self._failed[gated]  # one start takes half a minute; its failure is not tried again
        if self._engine is None or self._kind is not gated:
            self.stop()
            command = serve_command(self._home, gated=False)
            if gated:
                python, _, _, model, *options = command
                environment = {"PYTHON": python}
                command = [str(ROOT / "examples/vllm/serve"), model.removeprefix("--model="), *options]
            else:
                environment = {}
            log = self._logs / ("gated.log" if gated else "bare.log")
            try:
                self._engine = self._stack.enter_context(
                    running_engine(command, log, environment=environment)
                )
            except EngineFailed as error:
                self._failed[gated] = error
                raise
            self._kind = gated
        self._engine.wait_idle()
        return self._engine

    def stop(self) -> None:
        """Ends whatever runs."""
        self._stack.close()
        self._engine = None


@pytest.fixture(scope="session")
def bed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bed]:
    """The bed; its environment is built when it is not there."""
    made = Bed(build_environment(), tmp_path_factory.mktemp("engine"))
    yield made
    made.stop()


@pytest.fixture
def bare(bed: Bed) -> Engine:
    """A vLLM as it comes."""
    return bed.engine(gated=False)


@pytest.fixture
def gated(bed: Bed) -> Engine:
    """The same vLLM behind the gate, as examples/vllm starts it."""
    return bed.engine(gated=True)
