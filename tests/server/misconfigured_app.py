"""An app whose gate takes its settings from the environment, where a test has put a wrong one."""

from __future__ import annotations

from tests.server.bed import App
from tidegate import AdmissionMiddleware

app = AdmissionMiddleware(App())
