"""Prometheus text over HTTP: one engine instance.

Law of this file: one page, one reading or one error that names the URL. Several instances are several
probes (`prometheus_probes`), so that each has its own pace and none waits for another.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

from tidegate.core.reading import InvalidReading, Reading
from tidegate.probes.bounded_http import BoundedHttp
from tidegate.probes.exposition import ExpositionSieve
from tidegate.probes.labels import readings_from
from tidegate.probes.presets import KNOWN_NAMES, PRESETS, Preset, recognise
from tidegate.probes.protocol import ProbeError, shown
from tidegate.probes.selectors import Selector

_log = logging.getLogger(__name__)

ACCEPT = "text/plain;version=0.0.4;q=1,*/*;q=0.1"
MODELS_TRIES = 3


class PrometheusHttpProbe:
    """Reads an engine's metrics page; a `url` without a path means `/metrics`.

    `engine` names a preset, `"auto"` recognises it by the names on the page. `names` places single
    figures elsewhere. `per_engine` gives one reading for each data-parallel engine behind the URL.
    `read_models` asks `/v1/models` of the same host for the context limit, until it answers, three
    times at most; and anew once the engine may be another one (it was not to be had, or counts from the
    beginning).
    """

    def __init__(
        self,
        url: str,
        *,
        http: BoundedHttp | None = None,
        engine: str = "auto",
        names: Mapping[str, str] | None = None,
        per_engine: bool = False,
        read_models: bool = True,
        instance: str | None = None,
    ) -> None:
        parts = urlsplit(url)
        self.url = f"{parts.scheme}://{parts.netloc}/metrics" if parts.path in {"", "/"} else url
        self.instance = instance or parts.netloc.rpartition("@")[2]
        self._http = http or BoundedHttp()
        self._names = dict(names or {})
        self._preset = None if engine == "auto" else PRESETS[engine].with_names(self._names)
        self._wanted = KNOWN_NAMES | {Selector.parse(text).name for text in self._names.values()}
        self._per_engine = per_engine
        self._models_tries = self._most_models_tries = MODELS_TRIES if read_models else 0
        self._max_model_tokens: int | None = None
        self._counted_tokens = 0.0

    async def read(self) -> Sequence[Reading]:
        """Fetch the page once.

        Raises:
            ProbeError: the page could not be had or says nothing about a known engine.
            InvalidReading: it states a figure that cannot be true.
        """
        sieve = ExpositionSieve(self._wanted)
        try:
            await self._http.get(self.url, ACCEPT, sieve.feed)
        except ProbeError:
            self._models_tries = self._most_models_tries
            raise
        try:
            samples = sieve.finish()
            preset = self._preset or self._recognised(sieve.names)
            readings = readings_from(samples, preset, instance=self.instance, per_engine=self._per_engine)
        except ProbeError as error:
            raise ProbeError(f"{shown(self.url)}: {error}") from error
        except InvalidReading as error:
            raise InvalidReading(f"{shown(self.url)}: {error}") from error
        self._look_for_a_restart(readings)
        await self._ask_context_limit(preset)
        return [self._with_limit(reading) for reading in readings]

    async def aclose(self) -> None:
        """Close the connection."""
        await self._http.aclose()

    def _recognised(self, names: set[str]) -> Preset:
        preset = recognise(names)
        if preset is not None:
            return preset.with_names(self._names)
        if self._names:
            return Preset("custom", "an engine described by probe.names", {}, has_kv_level=False).with_names(
                self._names
            )
        shown = ", ".join(sorted(names)[:5])
        raise ProbeError(
            f"no known engine: the page has {len(names)} metrics ({shown}, ...). Name the engine with "
            f"probe.engine ({', '.join(PRESETS)}) or place the figures with probe.names."
        )

    def _look_for_a_restart(self, readings: Sequence[Reading]) -> None:
        before = self._counted_tokens
        self._counted_tokens = sum(
            (reading.generation_tokens or 0.0) + (reading.prompt_tokens or 0.0) for reading in readings
        )
        if self._counted_tokens < before:
            self._models_tries = self._most_models_tries

    async def _ask_context_limit(self, preset: Preset) -> None:
        if self._models_tries <= 0 or preset.models_path is None:
            return
        self._models_tries -= 1
        parts = urlsplit(self.url)
        body = bytearray()
        try:
            await self._http.get(
                f"{parts.scheme}://{parts.netloc}{preset.models_path}", "application/json", body.extend
            )
            limit = _least_limit(json.loads(body))
        except (ProbeError, ValueError, RecursionError) as error:
            _log.debug("no context limit from %s: %s", self.instance, error)
            return
        self._models_tries = 0
        self._max_model_tokens = limit

    def _with_limit(self, reading: Reading) -> Reading:
        if reading.max_model_tokens is not None or self._max_model_tokens is None:
            return reading
        return replace(reading, max_model_tokens=self._max_model_tokens)


def _least_limit(listing: Any) -> int | None:
    """Return the smallest `max_model_len` of an OpenAI model list: it holds for every model there."""
    models = listing.get("data") if isinstance(listing, dict) else None
    limits = [
        model["max_model_len"]
        for model in (models if isinstance(models, list) else [])
        if isinstance(model, dict)
        and isinstance(model.get("max_model_len"), int)
        and not isinstance(model["max_model_len"], bool)
        and model["max_model_len"] > 0
    ]
    return min(limits, default=None)
