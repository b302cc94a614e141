"""Run in the vLLM environment: log-probs by transformers in float64. One JSON task per line in, one JSON list
out.
"""

import json
import sys

import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, DynamicCache


def load(path: str, adapter: str | None, scaling: float) -> torch.nn.Module:
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float64, attn_implementation="eager")
    if adapter is not None:
        tensors = load_file(adapter)
        parameters = dict(model.named_parameters())
        for name in [name for name in tensors if name.endswith(".lora_A.weight")]:
            a, b = tensors[name].double(), tensors[name.replace("lora_A", "lora_B")].double()
            target = name.removeprefix("base_model.model.").replace(".lora_A.weight", ".weight")
            parameters[target].data += scaling * b @ a
    return model


MODELS: dict[int, torch.nn.Module] = {}


def logprobs(task: dict) -> list[float]:
    adapters = {int(version): path for version, path in task["adapters"].items()}
    for version in {span[2] for span in task["prompt_spans"] + task["completion_spans"]}:
        if version not in MODELS:
            MODELS[version] = load(task["model"], adapters.get(version), task["scaling"])
    cache = DynamicCache()
    tokens = torch.tensor([task["tokens"]])
    length = task["prompt_length"]
    # A chunk is fed to the model of one version. The last prompt token predicts the first completion token,
    # so it is fed under the version that sampled that one; token i of the completion is fed when i + 1 is
    # sampled.
    chunks = [(start, end, version) for start, end, version in task["prompt_spans"]]
    for start, end, version in task["completion_spans"]:
        first, last = max(length + start - 1, length), length + end - 1
        if last > first:
            chunks.append((first, last, version))
    logits = []
    with torch.no_grad():
        for start, end, version in chunks:
            output = MODELS[version](tokens[:, start:end], past_key_values=cache, use_cache=True)
            logits.append(output.logits[0])
    predicted = torch.cat(logits)[length - 1 :] / task["temperature"]
    return torch.log_softmax(predicted, -1).gather(1, tokens[0, length:, None])[:, 0].tolist()


for line in sys.stdin:
    print(json.dumps(logprobs(json.loads(line))), flush=True)
