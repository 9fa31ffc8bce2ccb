"""Presets and the label rule: what each engine's page becomes."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tests.server.expositions import names, page
from tests.server.readings import parse_exposition
from tidegate.core.reading import InvalidReading, Reading
from tidegate.probes.labels import readings_from
from tidegate.probes.presets import FIGURES, KNOWN_NAMES, PRESETS, recognise
from tidegate.probes.protocol import ProbeError
from tidegate.probes.selectors import Selector

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "vllm_0.32.0": (
        "vllm",
        {
            "kv_usage": 0.7734375,
            "waiting": 7,
            "waiting_for_capacity": 5,
            "running": 24,
            "capacity_tokens": 16384,
            "block_tokens": 128,
            "preemptions": 12.0,
            "generation_tokens": 20480.0,
            "prompt_tokens": 81920.0,
        },
    ),
    "vllm_0.32.0_dp2": (
        "vllm",
        {
            "kv_usage": 0.98,
            "waiting": 41,
            "waiting_for_capacity": 39,
            "running": 42,
            "capacity_tokens": 32768,
            "block_tokens": 16,
            "preemptions": 10.0,
            "generation_tokens": 1500.0,
        },
    ),
    "vllm_0.32.0_unused": (
        "vllm",
        {
            "kv_usage": 0.0,
            "capacity_tokens": 16384,
            "block_tokens": 128,
            "preemptions": 0.0,
            "generation_tokens": 0.0,
            "prompt_tokens": 0.0,
        },
    ),
    "vllm_0.6": (
        "vllm",
        {
            "kv_usage": 0.31,
            "waiting": 1,
            "running": 3,
            "capacity_tokens": 112000,
            "block_tokens": 16,
            "preemptions": 2.0,
            "generation_tokens": 450.0,
            "prompt_tokens": 900.0,
        },
    ),
    "vllm_0.10_both_names": ("vllm", {"kv_usage": 0.62, "waiting": 0, "running": 8}),
    "ray_vllm_0.32.0": (
        "ray",
        {
            "kv_usage": 0.9,
            "waiting": 3,
            "running": 11,
            "preemptions": 4.0,
            "generation_tokens": 100.0,
        },
    ),
    "ray_vllm_colon_0.8": ("ray-colon", {"kv_usage": 0.25, "waiting": 1, "running": 2}),
    "sglang_0.5.23": (
        "sglang",
        {
            "kv_usage": 0.71,
            "waiting": 2,
            "running": 13,
            "capacity_tokens": 20000,
            "block_tokens": 1,
            "max_model_tokens": 4096,
            "preemptions": 6.0,
            "generation_tokens": 880.0,
            "prompt_tokens": 5000.0,
        },
    ),
    "trtllm_serve_050f80d": (
        "trtllm-serve",
        {
            "kv_usage": 0.55,
            "waiting": 4,
            "running": 9,
            "capacity_tokens": 6400,
            "block_tokens": 32,
            "max_sequences": 64,
            "generation_tokens": 300.0,
            "prompt_tokens": 600.0,
        },
    ),
    "triton_trtllm_0.9": (
        "triton-trtllm",
        {
            "kv_usage": 5239 / 6239,
            "running": 10,
            "capacity_tokens": 6239 * 64,
            "block_tokens": 64,
            "max_sequences": 512,
        },
    ),
    "triton_trtllm_two_models": (
        "triton-trtllm",
        {"kv_usage": 0.9, "waiting": 3, "running": 5, "block_tokens": 64},
    ),
    "tgi_3": (
        "tgi",
        {
            "kv_usage": None,
            "waiting": 4,
            "running": 16,
            "generation_tokens": 8123.0,
            "prompt_tokens": 9000.0,
        },
    ),
    "llama_cpp_2026": (
        "llama.cpp",
        {
            "kv_usage": None,
            "waiting": 46,
            "running": 4,
            "generation_tokens": 39080.0,
            "prompt_tokens": 512.0,
        },
    ),
    "llama_cpp_2025": (
        "llama.cpp",
        {
            "kv_usage": 0.375,
            "waiting": 0,
            "running": 2,
            "generation_tokens": 200.0,
            "prompt_tokens": 100.0,
        },
    ),
    "lmdeploy_0.18.0": (
        "lmdeploy",
        {
            "kv_usage": 0.48,
            "waiting": 1,
            "running": 11,
            "generation_tokens": 2500.0,
            "prompt_tokens": 5000.0,
        },
    ),
    "dynamo_worker_2026": ("dynamo", {"kv_usage": 0.66, "running": 14}),
    "dynamo_worker_2025": ("dynamo", {"kv_usage": 0.25, "running": 3}),
    "dynamo_frontend_2026": (
        "dynamo-frontend",
        {
            "kv_usage": 0.9,
            "waiting": 6,
            "running": 21,
            "block_tokens": 16,
            "max_model_tokens": 8192,
            "generation_tokens": 1234.0,
        },
    ),
}


def read(text: bytes, *, per_engine: bool = False, names: dict[str, str] | None = None) -> list[Reading]:
    """Recognise the engine and read the page."""
    places = names or {}
    wanted = KNOWN_NAMES | {Selector.parse(place).name for place in places.values()}
    samples = parse_exposition(text, wanted)
    preset = recognise(samples)
    assert preset is not None
    return readings_from(samples, preset.with_names(places), instance="e", per_engine=per_engine)


def vllm(*lines: str) -> bytes:
    """Return a page of vLLM lines, `vllm:` left out."""
    return "".join(f"vllm:{line}\n" for line in lines).encode()


def test_every_fixture_has_a_case() -> None:
    """No engine's page is left unread, and no preset is left without a page."""
    assert names() == sorted(CASES)
    assert {preset for preset, _ in CASES.values()} == set(PRESETS)


@pytest.mark.parametrize("name", CASES)
def test_each_engine_reads_from_its_own_page(name: str) -> None:
    """Every figure of the page lands where it belongs, every other stays unknown."""
    preset_name, figures = CASES[name]
    samples = parse_exposition(page(name), KNOWN_NAMES)

    preset = recognise(samples)

    assert preset is PRESETS[preset_name]
    assert readings_from(samples, preset, instance="e") == [Reading(instance="e", **figures)]


@pytest.mark.parametrize("name", CASES)
def test_the_order_of_lines_does_not_matter(name: str) -> None:
    """Twenty shuffles of the lines give the same readings, fused and for each engine."""
    lines = [line for line in page(name).splitlines() if not line.startswith(b"#")]
    for per_engine in (False, True):
        expected = read(b"\n".join(lines) + b"\n", per_engine=per_engine)
        for seed in range(20):
            random.Random(seed).shuffle(lines)
            assert read(b"\n".join(lines) + b"\n", per_engine=per_engine) == expected


def test_each_engine_of_a_data_parallel_page_on_request() -> None:
    """One hot rank is seen as one hot rank, with its share of the blocks."""
    hot, cool = read(page("vllm_0.32.0_dp2"), per_engine=True)

    assert (hot.instance, hot.kv_usage, hot.waiting, hot.capacity_tokens) == ("e#0", 0.98, 40, 16384)
    assert (cool.instance, cool.kv_usage, cool.waiting, cool.capacity_tokens) == ("e#1", 0.1, 1, 16384)
    assert (hot.preemptions, cool.preemptions) == (9.0, 1.0)


def test_a_single_engine_keeps_its_name() -> None:
    """Asked for one reading each, a lone engine is not renamed."""
    assert [reading.instance for reading in read(page("vllm_0.32.0"), per_engine=True)] == ["e"]


def test_tensor_parallel_copies_are_not_added() -> None:
    """Two ranks of one engine tell the same load; the higher copy counts, whichever comes first."""
    lines = [
        'sglang:token_usage{tp_rank="0"} 0.2',
        'sglang:token_usage{tp_rank="1"} 0.3',
        'sglang:num_queue_reqs{tp_rank="1"} 5',
        'sglang:num_queue_reqs{tp_rank="0"} 4',
        'sglang:num_running_reqs{pid="1",tp_rank="0"} 2',
        'sglang:num_running_reqs{pid="2",tp_rank="0"} 2',
    ]
    (reading,) = read("\n".join(lines).encode() + b"\n", per_engine=True)

    assert (reading.kv_usage, reading.waiting, reading.running) == (0.3, 5, 2)


def test_duplicated_series_count_once() -> None:
    """The same line twice is one series; of two values the higher counts."""
    (reading,) = read(
        vllm(
            'kv_cache_usage_perc{engine="0"} 0.5',
            'kv_cache_usage_perc{engine="0"} 0.6',
            'num_requests_running{engine="0"} 3',
            'num_requests_running{engine="0"} 3',
        )
    )

    assert (reading.kv_usage, reading.running) == (0.6, 3)


def test_models_in_one_engine_are_added() -> None:
    """Series that differ in the model are different work."""
    (reading,) = read(
        vllm(
            'kv_cache_usage_perc{model_name="a"} 0.1',
            'num_requests_waiting{model_name="a"} 1',
            'num_requests_waiting{model_name="b"} 2',
        )
    )

    assert reading.waiting == 3


@pytest.mark.parametrize(("awake", "asleep"), [(("0", "0"), True), (("1", "1"), False), (("0", "1"), False)])
def test_asleep_when_every_engine_sleeps(awake: tuple[str, str], asleep: bool) -> None:
    """vLLM's sleep state is read; one waking engine keeps the whole awake."""
    (reading,) = read(
        vllm(
            'kv_cache_usage_perc{engine="0"} 0',
            'kv_cache_usage_perc{engine="1"} 0',
            *(
                f'engine_sleep_state{{engine="{rank}",sleep_state="awake"}} {state}'
                for rank, state in enumerate(awake)
            ),
            'engine_sleep_state{engine="0",sleep_state="discard_all"} 1',
        )
    )

    assert reading.asleep is asleep


def test_stated_tokens_come_before_blocks() -> None:
    """Blocks times block size is wrong for hybrid layouts, so the stated figure counts."""
    (reading,) = read(
        vllm(
            'kv_cache_usage_perc{engine="0"} 0',
            'cache_config_info{block_size="16",engine="0",kv_cache_size_tokens="5000",num_gpu_blocks="9"} 1',
        )
    )

    assert reading.capacity_tokens == 5000


def test_caches_of_different_sizes_have_no_one_capacity() -> None:
    """Two models in one engine, each with a cache: one level times the other size means nothing."""
    lines = ['sglang:token_usage{model_name="a"} 0.5']
    lines += [
        f'sglang:max_total_num_tokens{{model_name="{model}"}} {size}' for model, size in (("a", 5), ("b", 9))
    ]

    (reading,) = read("\n".join(lines).encode() + b"\n")

    assert reading.capacity_tokens is None


def test_what_the_page_states_once_is_not_shared_out() -> None:
    """Beside two engines, a count without a rank belongs to neither; a limit without one holds for both."""
    lines = [f'sglang:token_usage{{dp_rank="{rank}"}} 0.5' for rank in (0, 1)]
    lines += ["sglang:generation_tokens_total 100", "sglang:context_len 4096"]
    text = "\n".join(lines).encode() + b"\n"

    (fused,) = read(text)
    apart = read(text, per_engine=True)

    assert (fused.generation_tokens, fused.max_model_tokens) == (100.0, 4096)
    assert [(reading.generation_tokens, reading.max_model_tokens) for reading in apart] == [(None, 4096)] * 2


def test_of_several_context_limits_the_least_holds() -> None:
    """It is true of every model and of every engine, apart and fused."""
    lines = [b"sglang:token_usage 0.5", b'sglang:context_len{model_name="a"} 8192']
    lines += [b'sglang:context_len{model_name="b"} 4096', b""]
    assert [reading.max_model_tokens for reading in read(b"\n".join(lines))] == [4096]
    ranks = [
        b'sglang:token_usage{dp_rank="%d"} 0.5\nsglang:context_len{dp_rank="%d"} %d\n' % row
        for row in ((0, 0, 2048), (1, 1, 1024))
    ]
    assert [reading.max_model_tokens for reading in read(b"".join(ranks))] == [1024]


@pytest.mark.parametrize("blocks", ["None", "0", ""])
def test_an_unmeasured_capacity_is_unknown(blocks: str) -> None:
    """Before vLLM has sized its cache the labels hold no number; that is no capacity of nothing."""
    (reading,) = read(
        vllm(
            'kv_cache_usage_perc{engine="0"} 0',
            f'cache_config_info{{block_size="16",engine="0",num_gpu_blocks="{blocks}"}} 1',
        )
    )
    (stated,) = read(
        vllm(
            'kv_cache_usage_perc{engine="0"} 0',
            f'cache_config_info{{engine="0",kv_cache_size_tokens="{blocks}"}} 1',
        )
    )

    assert reading.capacity_tokens is None
    assert stated.capacity_tokens is None


def test_a_percentage_is_refused_with_the_way_out() -> None:
    """45 instead of 0.45 is said at once."""
    with pytest.raises(InvalidReading, match="divide by 100"):
        read(vllm('kv_cache_usage_perc{engine="0"} 45'))


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-Inf"])
@pytest.mark.parametrize("figure", ["kv_cache_usage_perc", "num_requests_waiting", "num_requests_running"])
def test_a_figure_that_is_no_number_is_not_zero(figure: str, value: str) -> None:
    """NaN and infinities in a figure that decides make the page a failure, whatever stands beside it."""
    lines = [f'{figure}{{engine="0"}} {value}', f'{figure}{{engine="1"}} 0.1']
    lines += ['kv_cache_usage_perc{engine="2"} 0.2'] if figure != "kv_cache_usage_perc" else []
    for order in (lines, lines[::-1]):
        with pytest.raises(ProbeError, match="not 0"):
            read(vllm(*order))


def test_nan_survives_a_duplicate() -> None:
    """A number beside a NaN of the same series does not hide it."""
    for order in (["NaN", "0.5"], ["0.5", "NaN"]):
        with pytest.raises(ProbeError, match="not 0"):
            read(vllm(*(f'kv_cache_usage_perc{{engine="0"}} {value}' for value in order)))


def test_a_side_figure_that_is_no_number_is_unknown() -> None:
    """A NaN counter does not blind the gate."""
    (reading,) = read(vllm('kv_cache_usage_perc{engine="0"} 0.5', 'num_preemptions_total{engine="0"} NaN'))

    assert (reading.kv_usage, reading.preemptions) == (0.5, None)


def test_negative_figures_are_refused() -> None:
    """A negative level cannot be true."""
    with pytest.raises(InvalidReading, match="kv_usage"):
        read(vllm('kv_cache_usage_perc{engine="0"} -0.1'))


def test_a_renamed_level_is_unknown_not_zero() -> None:
    """The engine is recognised, its level is not there: a failure that names what was looked for."""
    with pytest.raises(
        ProbeError, match=r"vllm:kv_cache_usage_perc, vllm:gpu_cache_usage_perc.*probe\.names"
    ):
        read(vllm('kv_cache_fill{engine="0"} 0.9', 'num_requests_running{engine="0"} 3'))


def test_an_engine_that_has_worked_without_a_level_is_unknown() -> None:
    """Only while no token has been computed is a missing level known to be nothing."""
    untouched = ['generation_tokens_total{engine="0"} 0', 'prompt_tokens_total{engine="0"} 0']
    assert read(vllm(*untouched))[0].kv_usage == 0.0
    # The first prompt holds its blocks before it is counted: a stated level always counts.
    assert read(vllm(*untouched, 'kv_cache_usage_perc{engine="0"} 0.3'))[0].kv_usage == 0.3

    for worked in ("generation_tokens_total", "prompt_tokens_total"):
        lines = [line.replace(" 0", " 1") if worked in line else line for line in untouched]
        with pytest.raises(ProbeError, match="vllm:kv_cache_usage_perc"):
            read(vllm(*lines))
    for alone in untouched:
        with pytest.raises(ProbeError, match="vllm:kv_cache_usage_perc"):
            readings_from(parse_exposition(vllm(alone), KNOWN_NAMES), PRESETS["vllm"], instance="e")


def test_one_engine_s_level_does_not_stand_for_another_s() -> None:
    """An engine that runs requests without a level makes the page a failure; an untouched one is empty."""
    lines = ['kv_cache_usage_perc{engine="0"} 0.2', 'num_requests_running{engine="0"} 3']
    with pytest.raises(ProbeError, match="engine 1 states no level"):
        read(vllm(*lines, 'num_requests_running{engine="1"} 3'))

    counters = [f'{name}_tokens_total{{engine="1"}} 0' for name in ("generation", "prompt")]
    used, unused = read(vllm(*lines, *counters), per_engine=True)

    assert (used.kv_usage, unused.kv_usage, unused.instance) == (0.2, 0.0, "e#1")


@pytest.mark.parametrize("coarser", ["", 'worker_id="7"', 'worker_id="7",dp_rank="0"'])
def test_figures_may_tell_engines_apart_by_fewer_labels(coarser: str) -> None:
    """Dynamo counts requests by worker and levels by rank: the same engines, in one reading or apart."""
    level = 'dynamo_component_gpu_cache_usage_percent{{dp_rank="{0}",worker_id="7"}} 0.{0}5\n'
    labels = ",".join(filter(None, [coarser, 'dynamo_endpoint="generate"']))
    running = f"dynamo_component_inflight_requests{{{labels}}} 9\n"
    text = (level.format(0) + level.format(1) + running).encode()

    (fused,) = read(text)
    apart = read(text, per_engine=True)

    assert (fused.kv_usage, fused.running) == (0.15, 9)
    assert [(reading.instance, reading.kv_usage) for reading in apart] == [("e#0.7", 0.05), ("e#1.7", 0.15)]


def test_a_total_beside_its_parts_is_not_added_to_them() -> None:
    """Figures with a rank count, one without beside them is their total."""
    lines = [
        f'sglang:{name}{{dp_rank="{rank}"}} {rank + 1}' for name in ("num_queue_reqs",) for rank in (1, 2)
    ]
    lines += [f'sglang:token_usage{{dp_rank="{rank}"}} 0.5' for rank in (1, 2)] + ["sglang:num_queue_reqs 5"]

    (reading,) = read("\n".join(lines).encode() + b"\n")

    assert reading.waiting == 5


def test_one_engine_s_limit_is_not_another_s() -> None:
    """What one rank states of itself says nothing of the next."""
    lines = [f'sglang:token_usage{{dp_rank="{rank}"}} 0.5' for rank in (0, 1)]
    lines += ['sglang:page_size{dp_rank="0"} 16', 'sglang:context_len{dp_rank="0"} 4096']

    first, second = read("\n".join(lines).encode() + b"\n", per_engine=True)

    assert (first.block_tokens, first.max_model_tokens) == (16, 4096)
    assert (second.block_tokens, second.max_model_tokens) == (None, None)


def test_names_place_a_figure_elsewhere() -> None:
    """An override finds the renamed level, with labels and in an info metric's label too."""
    text = b'vllm:num_requests_running 3\nmy_level{pool="kv"} 0.9\nmy_level 0.1\nmy_info{size="7"} 1\n'

    (reading,) = read(text, names={"kv_usage": 'my_level{pool="kv"}', "capacity_tokens": "my_info@size"})

    assert (reading.kv_usage, reading.running, reading.capacity_tokens) == (0.9, 3, 7)


def test_names_give_a_level_to_an_engine_without_one() -> None:
    """Once a level is placed, a page without it is a failure for that engine too."""
    preset = PRESETS["tgi"].with_names({"kv_usage": "my_level"})

    with pytest.raises(ProbeError, match="my_level"):
        readings_from({"tgi_queue_size": [({}, 1.0)]}, preset, instance="e")


def test_unknown_figures_are_refused() -> None:
    """A typo in `names` is an error that lists the figures."""
    with pytest.raises(ValueError, match=f"kv_level.*{FIGURES[0]}"):
        PRESETS["vllm"].with_names({"kv_level": "x"})


@pytest.mark.parametrize("text", ["", "1abc", 'a{b="c"', "a{b=c}", "a b", "a@", "a{b='c'}"])
def test_selectors_of_another_form_are_refused(text: str) -> None:
    """The error shows the text and the forms there are."""
    with pytest.raises(ValueError, match="not a selector"):
        Selector.parse(text)


def test_used_over_total_needs_a_total() -> None:
    """Used blocks without a maximum are no level, and a maximum of nothing is none either."""
    for total in ("", 'nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="max"} 0\n'):
        text = 'nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="used"} 5\n' + total
        with pytest.raises(ProbeError, match="nv_trt_llm_kv_cache_block_metrics"):
            read(text.encode())


def test_a_page_without_any_load_is_a_failure() -> None:
    """An engine without a level must at least say what runs or waits."""
    with pytest.raises(ProbeError, match="tgi_batch_current_size"):
        readings_from({}, PRESETS["tgi"], instance="e")
