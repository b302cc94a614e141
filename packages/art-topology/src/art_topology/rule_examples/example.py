"""What an example of a rule is, and the parts that examples are made of."""

import msgspec

from art_topology.diagnostics import RULES


class RuleExample(msgspec.Struct, frozen=True, kw_only=True):
    """A topology that breaks one rule, and what must change so that it does not.

    Args:
        code: Of the rule.
        why: What would happen otherwise, or where the rule comes from.
        failing: A file in TOML that breaks the rule, and no other.
        change: Pieces of ``failing`` and what stands in their place in ``passing``.
        file: The name of the failing file.
    """

    code: str
    why: str
    failing: str
    change: tuple[tuple[str, str], ...]
    file: str = "cluster.toml"

    @property
    def rule(self) -> str:
        """The rule in one sentence."""
        return RULES[self.code]

    @property
    def passing(self) -> str:
        """The file with its mistake corrected.

        Raises:
            ValueError: a piece of ``change`` is not in ``failing`` exactly once.
        """
        text = self.failing
        for old, new in self.change:
            if text.count(old) != 1:
                raise ValueError(f"{self.code}: {old!r} is {text.count(old)} times in the failing input")
            text = text.replace(old, new)
        return text.strip("\n") + "\n"


def example(
    code: str, why: str, *parts: str, change: dict[str, str], file: str = "cluster.toml"
) -> RuleExample:
    """An example of which the failing file is ``parts``, with an empty line between."""
    failing = "\n\n".join(part.strip("\n") for part in parts) + "\n"
    return RuleExample(code=code, why=why, failing=failing, change=tuple(change.items()), file=file)


def host(name: str, address: str, *, gpus: int = 0, more: str = "") -> str:
    """One ``[[cluster.hosts]]`` with eight CPU slots."""
    lines = ["[[cluster.hosts]]", f'host_id = "{name}"', f'address = "{address}"', "cpu_slots = 8"]
    lines += [f"gpus = {list(range(gpus))}"] if gpus else []
    return "\n".join([*lines, *more.strip("\n").splitlines()])


IB = '[cluster]\nnccl_transport = { net_name = "IB" }'
IB_AND_NIXL = f"{IB}\nnixl_transport = {{}}"
A = host("a", "10.0.0.1")
B = host("b", "10.0.0.2")
GPU_A = host("a", "10.0.0.1", gpus=8)
H200_A = host("a", "10.0.0.1", gpus=8, more='gpu_model = "H200"')
GPU_B = host("b", "10.0.0.2", gpus=8)


def gpu_trainer(parallel: str, *, gpus: int = 8, hosts: str = "a") -> str:
    """A trainer on the first ``gpus`` GPUs of each of ``hosts``."""
    placed = "\n".join(
        f'  {{ device = "gpu", host_id = "{name}", gpus = {list(range(gpus))} }},' for name in hosts
    )
    return f"[trainer]\nparallel = {{ {parallel} }}\nplacements = [\n{placed}\n]"


def service(name: str, members: str, more: str = "") -> str:
    """One ``[[services]]`` of Qwen/Qwen3-8B."""
    lines = ["[[services]]", f'name = "{name}"', 'base_model = "Qwen/Qwen3-8B"', f"members = [{members}]"]
    return "\n".join([*lines, *more.strip("\n").splitlines()])


def on_gpus(host_id: str, *gpus: int) -> str:
    """A member on GPUs of a host."""
    return f'{{ placement = {{ device = "gpu", host_id = "{host_id}", gpus = {list(gpus)} }} }}'


def on_cpu(host_id: str, slots: int = 1) -> str:
    """A member on CPU slots of a host."""
    return f'{{ placement = {{ device = "cpu", host_id = "{host_id}", slots = {slots} }} }}'


DENSE = """
[model.config]
model_type = "qwen3"
hidden_size = 512
num_hidden_layers = 8
num_attention_heads = 12
num_key_value_heads = 4
head_dim = 64
intermediate_size = 1536
vocab_size = 32000
max_position_embeddings = 4096
"""

LARGE = """
[model.config]
model_type = "llama"
hidden_size = 8192
num_hidden_layers = 96
num_attention_heads = 64
num_key_value_heads = 8
intermediate_size = 28672
vocab_size = 32000
max_position_embeddings = 4096
"""

MIDDLE = LARGE.replace("96", "78")

MOE = """
[model.config]
model_type = "qwen3_moe"
hidden_size = 512
num_hidden_layers = 8
num_attention_heads = 12
num_key_value_heads = 4
head_dim = 64
intermediate_size = 1536
num_experts = 12
num_experts_per_tok = 2
moe_intermediate_size = 240
vocab_size = 32000
max_position_embeddings = 4096
"""

FP8 = """
[model.config.quantization_config]
quant_method = "fp8"
weight_block_size = [128, 128]
"""

BIASED = """
[model.config]
model_type = "gpt_oss"
hidden_size = 512
num_hidden_layers = 8
num_attention_heads = 8
num_key_value_heads = 4
head_dim = 64
intermediate_size = 512
num_local_experts = 8
num_experts_per_tok = 2
vocab_size = 32000
max_position_embeddings = 4096
"""

LINEAR = """
[model.config]
model_type = "qwen3_next"
hidden_size = 512
num_hidden_layers = 8
num_attention_heads = 8
num_key_value_heads = 2
head_dim = 64
intermediate_size = 1024
vocab_size = 32000
max_position_embeddings = 4096
linear_num_key_heads = 4
linear_num_value_heads = 8
linear_key_head_dim = 64
linear_value_head_dim = 64
linear_conv_kernel_dim = 4
num_experts = 0
num_experts_per_tok = 0
moe_intermediate_size = 0
"""


def workload(**fields: object) -> str:
    """A ``[workload]``: 8 groups of 8 completions in rows of 4,096 tokens, with changes."""
    values: dict[str, object] = {
        "packed_sequence_length": 4096,
        "groups_per_step": 8,
        "group_size": 8,
        "prompt_tokens": 512,
        "completion_tokens": 512,
        **fields,
    }
    written = (
        f'{key} = "{value}"' if isinstance(value, str) else f"{key} = {value}"
        for key, value in values.items()
    )
    return "\n".join(["[workload]", *written])
