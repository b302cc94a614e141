"""The trainer computes what transformers and peft compute, packed or not, shared or not."""

import json
import math

import numpy as np
import pytest
import torch

from art_trainer import LoraSpec, SpecError
from art_trainer.model import TrainableModel
from art_trainer.models import describe_model, read_config
from art_trainer.probe import probe_row

TOLERANCE = 1e-5
LORA = LoraSpec(rank=4, alpha=8)
KL = ("loss_reference_logprob", "loss_kl_weight")


def relative(mine, theirs):
    """Norm of the difference over the norm, both over all tensors together."""
    difference = math.sqrt(sum(float((mine[n].double() - theirs[n].double()).square().sum()) for n in theirs))
    return difference / math.sqrt(sum(float(theirs[n].double().square().sum()) for n in theirs))


def test_logprobs_and_gradients_equal_transformers_and_peft(
    shaped_model, rows, completions, reference, random_adapter
):
    items = completions()
    adapter = random_adapter(shaped_model, LORA)
    theirs = reference(shaped_model, LORA, adapter)
    gradients = theirs.gradients(items)
    expected = torch.cat([theirs.logprobs(item) for item in items]).detach()

    probes = [probe_row(shaped_model, row, lora=LORA, adapter=adapter) for row in rows(items)]
    logprobs = torch.cat([probe.logprobs for probe in probes])
    assert relative({"": logprobs}, {"": expected}) < TOLERANCE
    loss = sum(probe.loss for probe in probes)  # the rows' weights are those of their batch
    assert loss == pytest.approx(float(theirs.loss(items).detach()), rel=TOLERANCE)
    mine = {name: sum(probe.gradients[name] for probe in probes) for name in gradients}
    assert relative(mine, gradients) < TOLERANCE
    for name in gradients:
        assert relative({name: mine[name]}, {name: gradients[name]}) < 20 * TOLERANCE, name


def test_a_forest_computes_fewer_tokens_for_the_same_result(completions, pack_chains, pack_forest):
    items = completions()
    forest, chains = pack_forest(items), pack_chains(items)
    assert len(forest["token_ids"]) < 0.6 * len(chains["token_ids"])
    assert len(forest["loss_source"]) == len(chains["loss_source"])


@pytest.mark.parametrize(
    "targets", [("q_proj", "v_proj"), ("k_proj",), ("up_proj", "o_proj"), ("down_proj",)]
)
def test_any_choice_of_targets(tiny_model, pack_forest, completions, reference, random_adapter, targets):
    lora = LoraSpec(rank=2, alpha=6, target_modules=targets)
    items = completions(seed=3)
    adapter = random_adapter(tiny_model, lora)
    gradients = reference(tiny_model, lora, adapter).gradients(items)
    mine = probe_row(tiny_model, pack_forest(items), lora=lora, adapter=adapter).gradients
    assert set(mine) == set(gradients)
    assert relative(mine, gradients) < TOLERANCE


def test_clipped_entries_stop_contributing(tiny_model, pack_forest, completions, reference, random_adapter):
    items = completions(seed=5)
    adapter = random_adapter(tiny_model, LORA)
    tight = {"clip_low": 0.05, "clip_high": 0.4}
    theirs = reference(tiny_model, LORA, adapter)
    mine = probe_row(tiny_model, pack_forest(items), lora=LORA, adapter=adapter, **tight)
    assert mine.loss == pytest.approx(float(theirs.loss(items, **tight).detach()), rel=1e-5)
    assert relative(mine.gradients, theirs.gradients(items, **tight)) < TOLERANCE
    loose = probe_row(tiny_model, pack_forest(items), lora=LORA, adapter=adapter, clip_low=1.0, clip_high=1e6)
    assert relative(loose.gradients, mine.gradients) > 0.1


def test_the_divergence_from_a_reference_is_added_with_its_weights(
    tiny_model, rows, completions, reference, random_adapter
):
    """Against the term written out, log-probs and sums in float64."""
    items = completions(seed=7)
    adapter = random_adapter(tiny_model, LORA)
    packed = rows(items)
    rng = np.random.default_rng(1)
    for row in packed:
        row["loss_reference_logprob"] = rng.uniform(-6, -2, len(row["loss_source"])).astype(np.float32)
        row["loss_kl_weight"] = rng.uniform(0, 0.05, len(row["loss_source"])).astype(np.float32)
    plain = [
        probe_row(tiny_model, {k: v for k, v in row.items() if k not in KL}, lora=LORA, adapter=adapter)
        for row in packed
    ]
    probes = [probe_row(tiny_model, row, lora=LORA, adapter=adapter) for row in packed]

    theirs = reference(tiny_model, LORA, adapter, dtype=torch.float64)
    new = torch.cat([theirs.logprobs(item) for item in items])
    given = torch.from_numpy(np.concatenate([row["loss_reference_logprob"] for row in packed])).double()
    weight = torch.from_numpy(np.concatenate([row["loss_kl_weight"] for row in packed])).double()
    penalty = (weight * (torch.exp(given - new) - (given - new) - 1)).sum()
    expected = theirs.loss(items) + penalty
    theirs.model.zero_grad()
    expected.backward()
    gradients = {name: parameter.grad.clone() for name, parameter in theirs.parameters().items()}

    assert float(penalty.detach()) > 0.1
    assert sum(probe.loss for probe in probes) == pytest.approx(float(expected.detach()), rel=TOLERANCE)
    added = sum(probe.loss for probe in probes) - sum(probe.loss for probe in plain)
    assert added == pytest.approx(float(penalty.detach()), rel=1e-4)
    mine = {name: sum(probe.gradients[name] for probe in probes) for name in gradients}
    assert relative(mine, gradients) < TOLERANCE


def test_version_0_is_the_base_model(tiny_model, pack_forest, completions):
    from transformers import AutoModelForCausalLM

    items = completions()
    base = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32)
    expected = []
    for item in items:
        text = torch.tensor([item.prompt + item.tokens[:-1]])
        logits = base(text).logits[0, len(item.prompt) - 1 :] / item.temperature
        expected.append(torch.log_softmax(logits, -1).gather(1, torch.tensor(item.tokens)[:, None])[:, 0])
    probe = probe_row(tiny_model, pack_forest(items), lora=LORA)
    assert relative({"": probe.logprobs}, {"": torch.cat(expected).detach()}) < TOLERANCE
    assert all(not tensor.any() for name, tensor in probe.gradients.items() if "lora_A" in name)
    assert any(tensor.any() for name, tensor in probe.gradients.items() if "lora_B" in name)


def test_base_weights_come_back_under_their_names(shaped_model):
    from safetensors.torch import load_file

    from art_trainer.weights import export_weights, weight_files

    description = describe_model(read_config(shaped_model))
    model = TrainableModel(description, torch.float32, LORA, shaped_model)
    names = {name.replace(".base.", "."): p for name, p in model.module.named_parameters()}

    class Bare:
        """The parameters as they are called without adapters."""

        def named_parameters(self):
            return names.items()

    exported = export_weights(Bare(), description.weights)
    stored = {}
    for file in weight_files(shaped_model):
        stored |= load_file(file)
    assert set(exported) == set(stored)
    assert all(torch.equal(exported[name], tensor) for name, tensor in stored.items())


def test_frozen_weights_get_no_gradient(tiny_model):
    model = TrainableModel(describe_model(read_config(tiny_model)), torch.float32, LORA, tiny_model)
    trained = {name for name, parameter in model.module.named_parameters() if parameter.requires_grad}
    assert trained
    assert all("lora_" in name for name in trained)


def test_bfloat16_stays_near_float32(tiny_model, pack_forest, completions):
    from art_trainer.logprobs import row_logprobs
    from art_trainer.rows import make_row

    row = make_row(pack_forest(completions()))
    exact = probe_row(tiny_model, pack_forest(completions()), lora=LORA).logprobs
    model = TrainableModel(describe_model(read_config(tiny_model)), torch.bfloat16, LORA, tiny_model)
    model.adapter.reset(0)
    logprobs, _ = row_logprobs(model, row)
    logprobs.sum().backward()
    assert logprobs.dtype == torch.float32
    assert model.adapter.gradients.dtype == torch.float32
    assert float(model.adapter.gradients.norm()) > 0
    assert float((logprobs.detach() - exact).abs().mean()) < 0.15


def test_unknown_targets_are_refused(tiny_model):
    with pytest.raises(SpecError, match="names lm_head; this model has q_proj"):
        probe_row(tiny_model, {}, lora=LoraSpec(target_modules=("q_proj", "lm_head")))


def test_the_adapter_config_is_read_by_peft(tiny_model, tmp_path):
    from peft import LoraConfig

    model = TrainableModel(describe_model(read_config(tiny_model)), torch.float32, LORA, tiny_model)
    (tmp_path / "adapter_config.json").write_text(model.adapter.peft_config("some/base"))
    config = LoraConfig.from_pretrained(str(tmp_path))
    assert (config.r, config.lora_alpha, config.base_model_name_or_path) == (4, 8, "some/base")
    assert set(config.target_modules) == set(LORA.target_modules)
    assert json.loads(model.adapter.peft_config("x"))["task_type"] == "CAUSAL_LM"
