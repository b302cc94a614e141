"""Services hold weights as their checkpoint has them; trainers hold every weight in the dtype."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from art_topology import ModelServiceSpec, TopologyError, homogeneous_cluster, load_model_config
from art_topology.compiler import compile_topology
from art_topology.diagnostics import Diagnostic
from art_topology.memory import service_memory, trainer_memory
from art_topology.models import ModelDescription, Quantization, checkpoint_bytes
from art_topology.planner import plan
from art_topology.ranks import RankLayout
from art_topology.serving import VllmParallelSpec
from art_topology.stages import StageLayout
from art_topology.workload import WorkloadSpec

CONFIGS = {
    model["name"]: model["config"]
    for model in json.loads((Path(__file__).parent / "published_models.json").read_text(encoding="utf-8"))
}
FP8: dict[str, Any] = {
    "quant_method": "fp8",
    "fmt": "e4m3",
    "activation_scheme": "dynamic",
    "weight_block_size": [128, 128],
}
MXFP4: dict[str, Any] = {
    "quant_method": "mxfp4",
    "modules_to_not_convert": [
        "model.layers.*.self_attn",
        "model.layers.*.mlp.router",
        "model.embed_tokens",
        "lm_head",
    ],
}
INT4_EXPERTS: dict[str, Any] = {
    "quant_method": "compressed-tensors",
    "format": "pack-quantized",
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {
                "num_bits": 4,
                "type": "int",
                "strategy": "group",
                "group_size": 32,
                "symmetric": True,
            },
        }
    },
    "ignore": [
        "lm_head",
        "re:.*self_attn.*",
        "re:.*shared_experts.*",
        r"re:.*mlp\.(gate|up|gate_up|down)_proj.*",
    ],
}
AWQ: dict[str, Any] = {
    "quant_method": "awq",
    "bits": 4,
    "group_size": 128,
    "zero_point": True,
    "version": "gemm",
}
WORKLOAD = WorkloadSpec(
    packed_sequence_length=8192, groups_per_step=8, group_size=8, prompt_tokens=512, completion_tokens=1536
)


def quantized(name: str, config: dict[str, Any] | None, **more: Any) -> ModelDescription:
    return load_model_config({**CONFIGS[name], "quantization_config": config, **more})


def weights(
    model: ModelDescription, parallel: VllmParallelSpec | None = None, workload: WorkloadSpec = WORKLOAD
) -> int:
    return service_memory(model, parallel or VllmParallelSpec(), workload, 10**12).weight_bytes


@pytest.mark.parametrize(
    ("name", "tensor_bytes"),
    [("openai/gpt-oss-20b", 13_761_264_768), ("openai/gpt-oss-120b", 65_248_815_744)],
)
def test_experts_in_mxfp4_have_the_bytes_of_the_published_checkpoint(name: str, tensor_bytes: int) -> None:
    # total_size in model.safetensors.index.json of the repositories on the Hugging Face hub
    model = quantized(name, MXFP4)
    assert checkpoint_bytes(model, 2) == tensor_bytes
    assert weights(model) == tensor_bytes


def test_fp8_with_blocks_of_scales_has_the_bytes_of_deepseek_v3() -> None:
    # The safetensors files of deepseek-ai/DeepSeek-V3 have 688,586,727,753 bytes, their headers included:
    # about 130 bytes for each of 91,991 tensors. The layer of multi-token prediction has copies of the
    # embedding and of the head.
    model = quantized("deepseek-ai/DeepSeek-V3", FP8, num_nextn_predict_layers=1)
    copies = 2 * 2 * 129_280 * 7168
    files = 688_586_727_753
    assert files - 20_000_000 < checkpoint_bytes(model, 2, mtp=True) + copies < files


@pytest.mark.parametrize(
    ("name", "config", "published", "error"),
    [
        # 594 GB and 1.03 TB: simonwillison.net, 2025-11-06, of Kimi K2 Thinking and Kimi K2 on the hub
        ("moonshotai/Kimi-K2-Instruct", INT4_EXPERTS, 594e9, 0.001),
        ("moonshotai/Kimi-K2-Instruct", FP8, 1.03e12, 0.005),
        # 4.48 and 1.09 GB: the files of an AWQ checkpoint of this model on the hub
        ("Qwen/Qwen2.5-7B", AWQ, 4.48e9 + 1.09e9, 0.002),
    ],
)
def test_other_forms_have_the_published_sizes(
    name: str, config: dict[str, Any], published: float, error: float
) -> None:
    assert checkpoint_bytes(quantized(name, config), 2) == pytest.approx(published, rel=error)


def test_deepseek_v4_has_its_experts_in_four_bits_and_the_rest_in_eight() -> None:
    name, config = "deepseek-ai/DeepSeek-V4-Flash", {**FP8, "scale_fmt": "ue8m0"}
    model = quantized(name, config, expert_dtype="fp4")
    assert model.quantization is not None
    assert model.quantization.names == ("fp8", "mxfp4")
    experts = 43 * 256 * 3 * 4096 * 2048
    assert experts * (4 + 8 / 32) / 8 < checkpoint_bytes(model, 2) < experts * 4.25 / 8 + 10e9
    assert checkpoint_bytes(quantized(name, config), 2) > experts


@pytest.mark.parametrize("config", [FP8, MXFP4, INT4_EXPERTS])
def test_the_trainer_holds_every_weight_in_the_dtype(config: dict[str, Any]) -> None:
    name = "Qwen/Qwen3-30B-A3B"
    layout = RankLayout(tp=1, cp=1, dp=8, pp=1, etp=1, ep=8, expert_dp=1)
    stages = StageLayout.uniform(48, 1)
    plain, other = quantized(name, None), quantized(name, config)
    assert trainer_memory(other, layout, stages, WORKLOAD) == trainer_memory(plain, layout, stages, WORKLOAD)
    assert weights(other) < weights(plain)


@pytest.mark.parametrize(
    "entry",
    [
        "model.layers.3.self_attn.o_proj",
        "model.layers.3.self_attn.o_proj.weight",
        "language_model.model.layers.3.self_attn.o_proj",
        "re:.*layers\\.3\\.self_attn\\.o_proj",
        "model.layers.3.*o_proj",
    ],
)
@pytest.mark.parametrize("key", ["modules_to_not_convert", "ignored_layers", "ignore"])
def test_a_matrix_that_is_named_keeps_the_dtype(key: str, entry: str) -> None:
    name = "Qwen/Qwen3-8B"
    all_of_it = checkpoint_bytes(quantized(name, FP8), 2)
    numbers = 4096 * 4096
    scales = 4 * numbers // 128**2
    kept = checkpoint_bytes(quantized(name, {**FP8, key: [entry]}), 2)
    assert kept - all_of_it == numbers - scales


@pytest.mark.parametrize("entry", ["self_attn", "model.layers.*.self_attn", "re:.*self_attn.*"])
def test_a_module_that_is_named_keeps_all_that_is_in_it(entry: str) -> None:
    model = quantized("Qwen/Qwen3-8B", {**FP8, "modules_to_not_convert": [entry]})
    assert model.quantization is not None
    assert model.quantization.told == "fp8 in blocks of 128 x 128: dense MLP"


def test_embeddings_norms_routers_and_the_head_are_not_quantized() -> None:
    model = quantized("Qwen/Qwen3-30B-A3B", FP8)
    assert model.quantization is not None
    assert model.quantization.told == "fp8 in blocks of 128 x 128: attention, routed experts"
    assert model.quantization.output is None


def test_a_head_is_quantized_where_gptq_says_so() -> None:
    config = {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False, "sym": True}
    without = checkpoint_bytes(quantized("Qwen/Qwen3-8B", {**config, "lm_head": False}), 2)
    head = 151_936 * 4096
    saved = without - checkpoint_bytes(quantized("Qwen/Qwen3-8B", {**config, "lm_head": True}), 2)
    # 4 bits, and for a group of 128 a scale of 2 bytes and a zero point of 4 bits; an index for each input
    assert saved == head * 2 - head // 2 - head // 128 * 5 // 2 - 4 * 4096


def test_what_gptq_leaves_out_by_a_pattern_keeps_the_dtype() -> None:
    config = {"quant_method": "gptq", "bits": 8, "group_size": -1, "dynamic": {r"-:.*\.mlp\..*": {}}}
    model = quantized("Qwen/Qwen3-8B", config)
    assert model.quantization is not None
    assert model.quantization.told == "int8 with a scale for each output: attention"


def test_the_quantization_of_a_multimodal_model_counts_for_its_text() -> None:
    whole = {"model_type": "outer", "text_config": CONFIGS["Qwen/Qwen3-8B"], "quantization_config": FP8}
    assert load_model_config(whole).quantization == quantized("Qwen/Qwen3-8B", FP8).quantization


@pytest.mark.parametrize(
    "parallel",
    [VllmParallelSpec(tp=4), VllmParallelSpec(pp=4), VllmParallelSpec(dp=4, expert_parallel=True)],
)
def test_workers_share_quantized_weights_as_others(parallel: VllmParallelSpec) -> None:
    plain, fp8 = quantized("Qwen/Qwen3-30B-A3B", None), quantized("Qwen/Qwen3-30B-A3B", FP8)
    assert 0.5 < weights(fp8, parallel) / weights(plain, parallel) < 0.62
    assert weights(fp8, parallel) * 4 >= weights(fp8)


def test_the_reason_of_a_workers_weights_has_every_number() -> None:
    model = quantized("openai/gpt-oss-20b", MXFP4)
    [part] = [
        part
        for part in service_memory(model, VllmParallelSpec(), WORKLOAD, 10**12).parts
        if part.name == "weights"
    ]
    experts, rest = 24 * 32 * 3 * 2880 * 2880, 20_914_757_184 - 24 * 32 * 3 * 2880 * 2880
    quantized_experts = f"{experts:,} weights as mxfp4 in groups of 32, 4.250 bits each with scales"
    assert part.why == f"{quantized_experts} + {rest:,} weights * 2 bytes"


def test_a_service_says_otherwise_how_its_weights_are_stored() -> None:
    plain, fp8 = quantized("Qwen/Qwen3-8B", None), quantized("Qwen/Qwen3-8B", FP8)
    assert fp8.with_weights("auto") is fp8
    assert fp8.with_weights("fp8") is fp8
    assert fp8.with_weights("unquantized") == plain
    assert weights(plain.with_weights("fp8")) == weights(fp8)
    sizes = [weights(plain.with_weights(form)) for form in ("unquantized", "int8", "int4")]
    assert sizes == sorted(sizes, reverse=True)
    oss = quantized("openai/gpt-oss-20b", None)
    assert weights(oss.with_weights("mxfp4")) == 13_761_264_768


def test_quantized_weights_leave_more_for_the_cache_and_are_read_faster() -> None:
    cluster = homogeneous_cluster(["10.0.0.1"], cpu_slots=8, gpus_per_host=8, gpu_model="H200")
    step = msgspec.structs.replace(WORKLOAD, lora_rank=16)
    model = quantized("Qwen/Qwen3-30B-A3B", None)
    plain, fp8 = (
        plan(model=model, cluster=cluster, workload=step, service_weights=form, trainer_gpus=4, limit=1)
        for form in ("auto", "fp8")
    )
    slow, fast = plain.ranked[0], fp8.ranked[0]
    slow_read, fast_read = (
        next(part for part in found.cost.rollout.parts if part.name == "weights") for found in (slow, fast)
    )
    assert fast.service_memory.kv_budget_bytes > slow.service_memory.kv_budget_bytes
    assert fast_read.total_s < slow_read.total_s
    assert "fp8 with scales" in fast_read.why
    assert fast.cost.trainer == slow.cost.trainer
    topology = fast.topology(cluster, base_model="Qwen/Qwen3-30B-A3B")
    assert topology.services[0].weights == "fp8"


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ({"quant_method": "quark"}, "quant_method 'quark' is not known"),
        ({"bits": 4}, "quant_method None is not known"),
        ({**FP8, "weight_block_size": 128}, "weight_block_size is 128, not two sizes of a block"),
        ({**FP8, "expert_dtype": "int2"}, "expert_dtype is 'int2', neither fp4 nor fp8"),
        ({**AWQ, "bits": "four"}, "bits is 'four', not 2, 3, 4 or 8"),
        ({**AWQ, "group_size": 0}, "group_size is 0, neither a size nor -1"),
        ({**INT4_EXPERTS, "config_groups": {}}, "config_groups is {}, not an object with groups"),
        ({**INT4_EXPERTS, "ignore": "lm_head"}, "ignore is 'lm_head', not a list of names"),
        ({**INT4_EXPERTS, "ignore": ["re:("]}, "'re:(' is no regular expression: missing )"),
        ("fp8", "it is 'fp8', not an object"),
    ],
)
def test_what_cannot_be_read_is_said_and_planned_unquantized(config: Any, told: str) -> None:
    model = quantized("Qwen/Qwen3-8B", config)
    assert model.quantization is not None
    assert model.quantization.unread.startswith(told)
    assert checkpoint_bytes(model, 2) == 2 * 8_190_735_360


NAMES = ("weights", "targets", "num_bits", "strategy", "group_size", "block_structure", "g")
WORDS = ("fp8", "int", "block", "re:(", "re:.*", "*", "Linear", "lm_head", "")
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 200) | st.sampled_from(WORDS),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=4),
    max_leaves=8,
)
KEYS = (
    "quant_method", "weight_block_size", "modules_to_not_convert", "ignore", "config_groups", "bits",
    "group_size", "dynamic", "format", "quant_algo", "expert_dtype", "lm_head", "quantization",
)  # fmt: skip


@given(
    method=st.sampled_from(["fp8", "mxfp4", "compressed-tensors", "gptq", "awq", "modelopt", "fbgemm_fp8"]),
    fields=st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=4),
)
def test_any_quantization_config_is_read_or_said_to_be_unknown(method: str, fields: dict[str, Any]) -> None:
    model = load_model_config(
        {**CONFIGS["Qwen/Qwen3-0.6B"], "quantization_config": {"quant_method": method, **fields}}
    )
    known = model.quantization
    assert known is None or bool(known.told) != bool(known.unread)
    assert 0 < checkpoint_bytes(model, 2) <= 2 * checkpoint_bytes(quantized("Qwen/Qwen3-0.6B", None), 2)


def diagnosed(model: ModelDescription, service: dict[str, Any]) -> tuple[Diagnostic, ...]:
    spec = msgspec.convert(
        {
            "name": "policy",
            "base_model": "Qwen/Qwen3-8B",
            "members": [{"placement": {"device": "gpu", "host_id": "host-0", "gpus": [0, 1, 2, 3]}}],
            "parallel": {"tp": 4},
            **service,
        },
        ModelServiceSpec,
    )
    cluster = homogeneous_cluster(["10.0.0.1"], cpu_slots=1, gpus_per_host=4)
    try:
        return compile_topology(cluster=cluster, services=[spec], model=model).warnings
    except TopologyError as error:
        return error.diagnostics


def test_a_service_that_contradicts_the_configuration_is_warned_of_it() -> None:
    model = quantized("Qwen/Qwen3-8B", FP8)
    assert diagnosed(model, {}) == diagnosed(model, {"weights": "fp8"}) == ()
    [found] = diagnosed(model, {"weights": "int4"})
    assert (found.code, found.severity, found.path) == ("ART-T814", "warning", "services[0].weights")
    assert "weights are int4, but the model's config.json says fp8" in found.message
    assert diagnosed(model, {"weights": "int4", "model_path": "/models/other"}) == ()
    assert diagnosed(quantized("Qwen/Qwen3-8B", None), {"weights": "fp8"}) == ()


def test_weights_of_an_unknown_form_are_asked_for() -> None:
    model = quantized("Qwen/Qwen3-8B", {"quant_method": "quark"})
    [found] = diagnosed(model, {})
    assert (found.code, found.suggestion) == ("ART-T815", ("services[0].weights", "unquantized"))
    assert "quant_method 'quark' is not known in quantization_config" in found.message
    assert diagnosed(model, {"weights": "int8"}) == ()


def test_shares_of_quantized_blocks_are_whole_blocks() -> None:
    # As vLLM refuses Qwen/Qwen3.6-35B-A3B-FP8 with tp 8: a shared expert of 512 leaves 64 (its pull request
    # 52915).
    name, narrow = "Qwen/Qwen3-Next-80B-A3B-Instruct", {"shared_expert_intermediate_size": 256}
    assert diagnosed(quantized(name, FP8), {}) == ()
    assert diagnosed(quantized(name, None, **narrow), {}) == ()
    [found] = diagnosed(quantized(name, FP8, **narrow), {})
    assert found.code == "ART-T816"
    assert "tp=4 leaves a worker 64 outputs of a shared expert's matrix" in found.message
    assert found.hint == "use dp=2 and tp=2"
    declared = diagnosed(quantized(name, None, **narrow), {"weights": "fp8"})
    assert [other.code for other in declared] == ["ART-T816"]
    one = {"members": [{"placement": {"device": "gpu", "host_id": "host-0", "gpus": [0]}}], "parallel": {}}
    assert diagnosed(quantized(name, FP8, **narrow), one) == ()


def test_the_accuracy_page_compares_published_checkpoints_within_half_a_percent() -> None:
    page = (Path(__file__).parents[3] / "docs" / "planner-accuracy.md").read_text(encoding="utf-8")
    rows = page.partition("## Quantized checkpoints")[2].partition("\n## ")[0].splitlines()
    errors = [float(row.split(" | ")[-2].rstrip("%")) for row in rows if row.startswith("| ") and "/" in row]
    assert len(errors) == 6
    assert max(map(abs, errors)) < 0.5


def test_a_quantization_is_part_of_the_description_only_where_there_is_one() -> None:
    assert quantized("Qwen/Qwen3-8B", None).quantization is None
    assert isinstance(quantized("Qwen/Qwen3-8B", FP8).quantization, Quantization)
    assert quantized("Qwen/Qwen3-8B", MXFP4).quantization is None, "it has no experts"
