"""The engine's own `prometheus_client` registry, in this very process: no HTTP at all.

Law of this file: only the collectors that carry wanted figures are asked, never the histograms beside
them. In multi-process mode (`PROMETHEUS_MULTIPROC_DIR`) the registry in memory knows this process alone,
and vLLM gives each step's figures to only one of its API servers: then the files all processes share
are merged, beside the event loop, and the answer is kept for a moment. The context limit, which vLLM does
not publish, is taken from the app that Tidegate runs inside.
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from prometheus_client import REGISTRY, CollectorRegistry, Metric
from prometheus_client.multiprocess import MultiProcessCollector

from tidegate.core.reading import Reading
from tidegate.probes.host_app import context_limit_tokens
from tidegate.probes.labels import readings_from
from tidegate.probes.offload import Offload
from tidegate.probes.presets import KNOWN_NAMES, PRESETS, Preset, recognise
from tidegate.probes.protocol import ProbeError
from tidegate.probes.selectors import Sample, Selector

MULTIPROC_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"
_merge_files: Callable[[list[str]], Iterable[Metric]] = MultiProcessCollector.merge


class RegistryProbe:
    """Reads the figures of an engine that runs in this process.

    `multiproc_dir` is taken from the environment when not given; `cache_s` is how long one merge of the
    shared files serves further readings; `host_app` is the ASGI app that may know the context limit.
    """

    def __init__(
        self,
        registry: CollectorRegistry = REGISTRY,
        *,
        engine: str = "auto",
        names: Mapping[str, str] | None = None,
        per_engine: bool = False,
        instance: str = "default",
        multiproc_dir: str | None = None,
        cache_s: float = 0.1,
        host_app: object = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.instance = instance
        self._registry = registry
        self._names = dict(names or {})
        self._fixed = None if engine == "auto" else PRESETS[engine].with_names(self._names)
        self._found: Preset | None = self._fixed
        self._wanted = KNOWN_NAMES | {Selector.parse(text).name for text in self._names.values()}
        self._per_engine = per_engine
        self._directory = multiproc_dir or os.environ.get(MULTIPROC_VARIABLE)
        self._cache_s = cache_s
        self._host_app = host_app
        self._clock = clock
        self._cached: tuple[float, dict[str, list[Sample]]] | None = None
        self._merge = Offload(self._merged, f"tidegate probe {instance}")

    @property
    def engine_title(self) -> str | None:
        """The engine that publishes here, once a reading has been had."""
        return self._found.title if self._found is not None else None

    async def read(self) -> Sequence[Reading]:
        """Read once.

        Raises:
            ProbeError: no known engine publishes here, or the shared files cannot be read.
            InvalidReading: a figure cannot be true.
        """
        if self._directory is None:
            return self.read_now()
        if self._cached is None or self._clock() - self._cached[0] >= self._cache_s:
            samples = await self._merge.run()
            self._cached = (self._clock(), samples)
        return self._readings(self._cached[1])

    def read_now(self) -> Sequence[Reading]:
        """Read the registry in memory, without an event loop.

        Raises:
            ProbeError: no known engine publishes here.
            InvalidReading: a figure cannot be true.
        """
        wanted = self._found.metric_names if self._found is not None else self._wanted
        samples = _samples(self._registry.restricted_registry(wanted).collect())
        if not samples and self._fixed is None:
            self._found = None  # the engine was taken away or replaced: look at everything next time
        return self._readings(samples)

    def _readings(self, samples: Mapping[str, Sequence[Sample]]) -> Sequence[Reading]:
        preset = self._found or self._recognised(samples)
        readings = readings_from(samples, preset, instance=self.instance, per_engine=self._per_engine)
        self._found = preset
        limit = context_limit_tokens(self._host_app)
        return [_with_limit(reading, limit) for reading in readings]

    def _recognised(self, names: Iterable[str]) -> Preset:
        preset = recognise(names)
        if preset is None:
            place = self._directory or "this process's prometheus_client registry"
            raise ProbeError(
                f"no engine's metrics in {place}; if the engine runs elsewhere set probe.urls, and if it is "
                "vLLM, start it without --disable-log-stats."
            )
        return preset.with_names(self._names)

    def _merged(self) -> dict[str, list[Sample]]:
        directory = Path(self._directory or "")
        files = [str(path) for kind in ("gauge", "counter") for path in directory.glob(f"{kind}_*.db")]
        if not files:
            raise ProbeError(f"{MULTIPROC_VARIABLE} is {directory}, but no metrics files are there.")
        try:
            metrics = _merge_files(files)
        except (OSError, RuntimeError, ValueError, LookupError, struct.error) as error:
            raise ProbeError(f"the metrics files in {directory} cannot be read ({error!r}).") from error
        return {name: found for name, found in _samples(metrics).items() if name in self._wanted}


def _with_limit(reading: Reading, limit_tokens: int | None) -> Reading:
    if limit_tokens is None or reading.max_model_tokens is not None:
        return reading
    return replace(reading, max_model_tokens=limit_tokens)


def _samples(metrics: Iterable[Metric]) -> dict[str, list[Sample]]:
    samples: dict[str, list[Sample]] = {}
    for metric in metrics:
        for sample in metric.samples:
            samples.setdefault(sample.name, []).append((sample.labels, sample.value))
    return samples
