"""Where the KV level comes from: one small file for each source.

`auto` finds the source, `poller` asks it, beside the requests. A source answers with a
`tidegate.Reading`, or raises; what an old or missing reading means is decided in `core/signal.py`.

    protocol         what a source looks like, and its one error
    function         any callable as a source
    registry         the engine's own prometheus_client registry, in this process
    prometheus_http  /metrics of any engine over HTTP (bounded_http, exposition)
    sglang           SGLang's load snapshot, in shared memory or at /v1/loads
    shared_memory    a level that any process on this machine publishes
    presets          which engine states what under which name (selectors, labels)
    options          the settings group `probe`
"""

from __future__ import annotations

from tidegate.probes.function import as_probe
from tidegate.probes.protocol import Probe, ProbeError, ProbeGroup

__all__ = ["Probe", "ProbeError", "ProbeGroup", "as_probe"]
