"""Where each engine states each figure.

Law of this file: a table and nothing else. Every name was read in the engine's own source; the fixture
of the same name under tests/server/expositions/ says where. Of several places for one figure the first
that is present counts, so newer names stand before older ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from tidegate.probes.selectors import Selector

FIGURES = (
    "kv_usage",
    "kv_used",
    "kv_total",
    "waiting",
    "running",
    "waiting_for_capacity",
    "capacity_tokens",
    "capacity_blocks",
    "block_tokens",
    "max_sequences",
    "max_model_tokens",
    "preemptions",
    "generation_tokens",
    "prompt_tokens",
    "awake",
)
"""What a preset, or the option `names`, can place. `kv_used` over `kv_total` stands in for `kv_usage`."""


@dataclass(frozen=True, slots=True)
class Preset:
    """One engine's names.

    `blocks_cover_all_ranks`: each data-parallel rank states the sum of all ranks' blocks.
    `level_comes_with_work`: an engine states its level with its first request, in some modes.
    `has_kv_level`: False where the engine publishes no level at all; such a reading has `kv_usage=None`.
    """

    name: str
    title: str
    places: Mapping[str, tuple[Selector, ...]]
    blocks_cover_all_ranks: bool = False
    level_comes_with_work: bool = False
    has_kv_level: bool = True
    models_path: str | None = None

    @property
    def metric_names(self) -> frozenset[str]:
        """Every metric name this preset looks for."""
        return frozenset(place.name for places in self.places.values() for place in places)

    def recognised_by(self, present: Iterable[str]) -> bool:
        """Whether an exposition with these metric names comes from this engine."""
        telling = ("kv_usage", "kv_used", "running", "waiting", "generation_tokens")
        wanted = {place.name for figure in telling for place in self.places.get(figure, ())}
        return not wanted.isdisjoint(present)

    def with_names(self, overrides: Mapping[str, str]) -> Preset:
        """Return the preset with some figures placed elsewhere.

        Raises:
            ValueError: no such figure, or the place is not a selector.
        """
        places = dict(self.places)
        for figure, text in overrides.items():
            if figure not in FIGURES:
                raise ValueError(f"names.{figure}: no such figure, expected one of {', '.join(FIGURES)}.")
            places[figure] = (Selector.parse(text),)
        kv_level = self.has_kv_level or not {"kv_usage", "kv_used"}.isdisjoint(overrides)
        return replace(self, places=places, has_kv_level=kv_level)


def _preset(name: str, title: str, places: Mapping[str, str], **facts: object) -> Preset:
    parsed = {
        figure: tuple(Selector.parse(text) for text in texts.split()) for figure, texts in places.items()
    }
    return Preset(name, title, parsed, **facts)  # type: ignore[arg-type]


def _vllm(name: str, title: str, prefix: str, models_path: str | None = "/v1/models") -> Preset:
    # Ray's own exporter has written counters with and without `_total`, hence both.
    places = {
        "kv_usage": "{0}kv_cache_usage_perc {0}gpu_cache_usage_perc",
        "waiting": "{0}num_requests_waiting",
        "waiting_for_capacity": '{0}num_requests_waiting_by_reason{{reason="capacity"}}',
        "running": "{0}num_requests_running",
        "capacity_tokens": "{0}cache_config_info@kv_cache_size_tokens",
        "capacity_blocks": "{0}cache_config_info@num_gpu_blocks",
        "block_tokens": "{0}cache_config_info@block_size",
        "preemptions": "{0}num_preemptions_total {0}num_preemptions",
        "generation_tokens": "{0}generation_tokens_total {0}generation_tokens",
        "prompt_tokens": "{0}prompt_tokens_total {0}prompt_tokens",
        "awake": '{0}engine_sleep_state{{sleep_state="awake"}}',
    }
    filled = {figure: text.format(prefix) for figure, text in places.items()}
    # Several API servers share their gauges through files, where a gauge nobody has set is left out, and
    # vLLM first sets it with the first request.
    return _preset(
        name,
        title,
        filled,
        blocks_cover_all_ranks=True,
        level_comes_with_work=True,
        models_path=models_path,
    )


_ALL = (
    _vllm("vllm", "vLLM", "vllm:"),
    _vllm("ray", "vLLM under Ray Serve", "ray_vllm_", models_path=None),
    _vllm("ray-colon", "vLLM under Ray Serve (older Ray)", "ray_vllm:", models_path=None),
    _preset(
        "sglang",
        "SGLang",
        {
            "kv_usage": "sglang:token_usage",
            "kv_used": "sglang:num_used_tokens",
            "kv_total": "sglang:max_total_num_tokens",
            # With priority scheduling the total stands under priority="", its parts beside it.
            "waiting": 'sglang:num_queue_reqs{priority=""}',
            "running": 'sglang:num_running_reqs{priority=""}',
            "capacity_tokens": "sglang:max_total_num_tokens",
            "block_tokens": "sglang:page_size",
            "max_model_tokens": "sglang:context_len",
            "preemptions": "sglang:num_retracted_requests_total",
            # The plain counter moves when a request ends, the real-time one with every step.
            "generation_tokens": 'sglang:realtime_tokens_total{mode="decode"} sglang:generation_tokens_total',
            "prompt_tokens": "sglang:prompt_tokens_total",
        },
        models_path="/v1/models",
    ),
    _preset(
        "trtllm-serve",
        "TensorRT-LLM (trtllm-serve)",
        {
            "kv_usage": "trtllm_kv_cache_utilization",
            "kv_used": "trtllm_kv_cache_used_blocks",
            "kv_total": "trtllm_kv_cache_max_blocks",
            "waiting": "trtllm_num_requests_waiting",
            "running": "trtllm_num_requests_running",
            "capacity_blocks": "trtllm_kv_cache_max_blocks",
            "block_tokens": "trtllm_kv_cache_tokens_per_block",
            "max_sequences": "trtllm_max_num_active_requests",
            "generation_tokens": "trtllm_generation_tokens_total",
            "prompt_tokens": "trtllm_prompt_tokens_total",
        },
    ),
    _preset(
        "triton-trtllm",
        "TensorRT-LLM on Triton",
        {
            # The backend hands figures on as whole numbers, so its "fraction" is no use.
            "kv_used": 'nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="used"}',
            "kv_total": 'nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="max"}',
            "waiting": 'nv_trt_llm_request_metrics{request_type="waiting"}',
            "running": 'nv_trt_llm_request_metrics{request_type="scheduled"}',
            "capacity_blocks": 'nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="max"}',
            "block_tokens": 'nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="tokens_per"}',
            "max_sequences": 'nv_trt_llm_request_metrics{request_type="max"}',
        },
    ),
    _preset(
        "lmdeploy",
        "LMDeploy",
        {
            "kv_usage": "lmdeploy:gpu_cache_usage_perc",
            "waiting": "lmdeploy:num_requests_waiting",
            "running": "lmdeploy:num_requests_running",
            "generation_tokens": "lmdeploy:generation_tokens_total",
            "prompt_tokens": "lmdeploy:prompt_tokens_total",
        },
    ),
    _preset(
        "dynamo",
        "NVIDIA Dynamo worker",
        {
            "kv_usage": "dynamo_component_gpu_cache_usage_percent "
            "dynamo_component_kvstats_gpu_cache_usage_percent",
            # Other endpoints of a worker are Dynamo's own calls, not requests.
            "running": 'dynamo_component_inflight_requests{dynamo_endpoint="generate"}',
            "capacity_blocks": "dynamo_component_total_blocks dynamo_component_kvstats_total_blocks",
        },
    ),
    _preset(
        "dynamo-frontend",
        "NVIDIA Dynamo frontend",
        {
            "kv_used": "dynamo_frontend_worker_active_decode_blocks",
            "kv_total": "dynamo_frontend_model_total_kv_blocks",
            "waiting": "dynamo_frontend_queued_requests",
            "running": "dynamo_frontend_inflight_requests",
            "block_tokens": "dynamo_frontend_model_kv_cache_block_size",
            "max_model_tokens": "dynamo_frontend_model_context_length",
            "generation_tokens": "dynamo_frontend_output_tokens_total",
        },
        has_kv_level=False,
    ),
    _preset(
        "tgi",
        "Text Generation Inference",
        {
            "waiting": "tgi_queue_size",
            "running": "tgi_batch_current_size",
            "generation_tokens": "tgi_request_generated_tokens_sum",
            "prompt_tokens": "tgi_request_input_length_sum",
        },
        has_kv_level=False,
    ),
    _preset(
        "llama.cpp",
        "llama.cpp server",
        {
            "kv_usage": "llamacpp:kv_cache_usage_ratio",  # until May 2025; later builds publish no level
            "waiting": "llamacpp:requests_deferred",
            "running": "llamacpp:requests_processing",
            "generation_tokens": "llamacpp:tokens_predicted_total",
            "prompt_tokens": "llamacpp:prompt_tokens_total",
        },
        has_kv_level=False,
    ),
)

PRESETS: Mapping[str, Preset] = {preset.name: preset for preset in _ALL}
"""By name, in the order in which an unnamed exposition is compared with them."""

KNOWN_NAMES = frozenset().union(*(preset.metric_names for preset in _ALL))


def recognise(present: Iterable[str]) -> Preset | None:
    """Return the preset of the engine that writes these metric names, if one is known."""
    names = set(present)
    return next((preset for preset in _ALL if preset.recognised_by(names)), None)
