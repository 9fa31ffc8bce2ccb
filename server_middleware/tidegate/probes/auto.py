"""From the options to a probe, and a sentence that says why this one.

Law of this file: what is configured is obeyed; what is found is named. When nothing is found there is
still a probe, one that fails with advice and looks again at each reading, for an engine may publish its
metrics only after the gate was built.
"""

from __future__ import annotations

import logging
import os
import ssl
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count
from pathlib import Path
from urllib.parse import urlsplit

from prometheus_client import REGISTRY, CollectorRegistry

from tidegate.core.reading import InvalidReading, Reading
from tidegate.probes.bounded_http import BoundedHttp
from tidegate.probes.options import ProbeOptions
from tidegate.probes.presets import PRESETS
from tidegate.probes.prometheus_http import PrometheusHttpProbe
from tidegate.probes.protocol import Probe, ProbeError, ProbeGroup, as_readings, shown
from tidegate.probes.registry import MULTIPROC_VARIABLE, RegistryProbe
from tidegate.probes.sglang import SNAPSHOT_DIRECTORY, SNAPSHOT_PATTERN, SglangLoadsProbe, SglangSnapshotProbe
from tidegate.probes.shared_memory import SharedLevelProbe

_log = logging.getLogger(__name__)

Found = tuple[Probe, str]


def find_probe(
    options: ProbeOptions,
    *,
    registry: CollectorRegistry = REGISTRY,
    environ: Mapping[str, str] = os.environ,
    modules: Mapping[str, object] = sys.modules,
    snapshot_directory: Path | None = None,
    host_app: object = None,
) -> Found:
    """Return the probe for these options and a sentence that explains the choice.

    `auto` looks, in this order, at `urls`, `path`, the prometheus_client registry of this process, and
    SGLang's snapshot in shared memory. `host_app` is the app Tidegate runs inside, which may know what
    the registry does not say.

    Raises:
        ValueError: a certificate file of the options cannot be used.
    """

    def in_process() -> Found:
        return _registry(options, registry, environ, host_app)

    builders: Mapping[str, Callable[[], Found]] = {
        "prometheus": lambda: _prometheus(options),
        "registry": in_process,
        "sglang": lambda: _sglang(options, snapshot_directory),
        "shared_memory": lambda: _shared_memory(options),
    }
    if options.source in builders:
        probe, why = builders[options.source]()
        return probe, f"{why} (probe.source = '{options.source}')"
    if options.urls:
        return _prometheus(options)
    if options.path is not None:
        is_sglang = Path(options.path).match(SNAPSHOT_PATTERN)
        return _sglang(options, None) if is_sglang else _shared_memory(options)
    engine_here = _engine_in_memory(options, registry)
    if engine_here is not None:
        probe, why = in_process()
        return probe, f"{why}: {engine_here} publishes there"
    look = _LookAround(in_process(), _sglang(options, snapshot_directory), modules)
    return look, f"nothing yet, looking again at each reading; {look.advice()}"


class _LookAround:
    """Looks around in this process and on this machine until a source answers, then stays with it."""

    instance = "default"

    def __init__(self, in_process: Found, snapshot: Found, modules: Mapping[str, object]) -> None:
        self._modules = modules
        # SGLang renews its snapshot every 15 decoding steps, its gauges every 40.
        self._candidates = (snapshot, in_process) if "sglang" in modules else (in_process, snapshot)
        self._found: Probe | None = None

    async def read(self) -> Sequence[Reading]:
        """Read the source found, or look for one.

        Raises:
            ProbeError: no source answers; the message says what was looked at and what to set.
            InvalidReading: a figure cannot be true.
        """
        if self._found is not None:
            return as_readings(await self._found.read())
        for probe, why in self._candidates:
            try:
                readings = as_readings(await probe.read())
            except ProbeError as error:
                _log.debug("%s: %s", why, error)
                continue
            self._found = probe
            _log.warning("Tidegate: the level is found: %s", why)
            return readings
        raise ProbeError(self.advice())

    def advice(self) -> str:
        """Say what was looked at and what would help."""
        hint = "set probe.urls to the engine's metrics page, e.g. http://127.0.0.1:8000/metrics"
        if "vllm" in self._modules:
            hint = "vLLM is loaded here but publishes nothing: start it without --disable-log-stats"
        elif "sglang" in self._modules:
            hint = (
                "SGLang is loaded here but has no snapshot: start it with --enable-metrics and set probe.urls"
            )
        return (
            "no engine publishes in this process's prometheus_client registry, no SGLang snapshot is in "
            f"shared memory, probe.urls is empty; {hint}."
        )


def _engine_in_memory(options: ProbeOptions, registry: CollectorRegistry) -> str | None:
    probe = RegistryProbe(registry, engine=options.engine, names=options.names)
    try:
        probe.read_now()
    except InvalidReading:
        return "an engine"  # it is there; its figures are judged at each reading
    except ProbeError:
        return None
    return probe.engine_title


def _prometheus(options: ProbeOptions) -> Found:
    tls = options.tls_context()
    probes = [
        PrometheusHttpProbe(
            url,
            http=_http(options, tls),
            engine=options.engine,
            names=options.names,
            per_engine=options.per_engine,
            read_models=options.read_models,
            instance=name,
        )
        for url, name in _named(options.urls)
    ]
    what = "Prometheus text at " + ", ".join(shown(probe.url) for probe in probes)
    return _one_or_group(probes), f"{what}; engine: {_engine(options)}"


def _registry(
    options: ProbeOptions, registry: CollectorRegistry, environ: Mapping[str, str], host_app: object
) -> Found:
    directory = environ.get(MULTIPROC_VARIABLE) or None
    probe = RegistryProbe(
        registry,
        engine=options.engine,
        names=options.names,
        per_engine=options.per_engine,
        multiproc_dir=directory,
        host_app=host_app,
    )
    if directory is None:
        return probe, "the prometheus_client registry of this process"
    return probe, (
        f"the metrics files of all processes in {directory} ({MULTIPROC_VARIABLE} is set: the registry of "
        "this process alone would miss what the engine told the others)"
    )


def _sglang(options: ProbeOptions, directory: Path | None) -> Found:
    if not options.urls:
        probe = SglangSnapshotProbe(
            options.path, directory=directory or SNAPSHOT_DIRECTORY, per_engine=options.per_engine
        )
        return probe, f"SGLang's load snapshot in shared memory, {options.path or 'the only one alive'}"
    tls = options.tls_context()
    probes = [
        SglangLoadsProbe(url, http=_http(options, tls), per_engine=options.per_engine, instance=name)
        for url, name in _named(options.urls)
    ]
    return _one_or_group(probes), "SGLang's " + ", ".join(shown(probe.url) for probe in probes)


def _named(urls: Sequence[str]) -> Iterator[tuple[str, str | None]]:
    """Each with the name of its instance, `None` where its host says enough: a gateway may show several."""
    hosts = [urlsplit(url).netloc for url in urls]
    given: set[str] = set()
    for url, host in zip(urls, hosts, strict=True):
        if hosts.count(host) == 1:
            yield url, None
            continue
        name = place = host + urlsplit(url).path.rstrip("/")
        numbers = count(2)
        while name in given:  # they differ in the query, which may hold a secret
            name = f"{place}({next(numbers)})"
        given.add(name)
        yield url, name


def _shared_memory(options: ProbeOptions) -> Found:
    probe = SharedLevelProbe(options.path or "", max_age_s=options.stale_after_s)
    return probe, f"the shared-memory level {options.path}"


def _one_or_group(probes: Sequence[Probe]) -> Probe:
    return probes[0] if len(probes) == 1 else ProbeGroup(probes)


def _http(options: ProbeOptions, tls: ssl.SSLContext | bool) -> BoundedHttp:
    return BoundedHttp(
        timeout_s=options.timeout_s,
        max_bytes=options.max_bytes,
        headers=options.request_headers,
        tls=tls,
    )


def _engine(options: ProbeOptions) -> str:
    return "recognised by its metrics" if options.engine == "auto" else PRESETS[options.engine].title
