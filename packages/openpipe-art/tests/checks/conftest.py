"""Small model folders, and machines that are made up of files."""

import json
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from art.checks import machine, packages

GIB = 2**30
CONFIG = {
    "rms_norm_eps": 1e-5,
    "rope_theta": 100000.0,
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "tie_word_embeddings": True,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "head_dim": 64,
    "vocab_size": 49152,
    "max_position_embeddings": 8192,
}
"""The sizes of SmolLM2-135M."""
LLAMA_LAYER = {
    "input_layernorm": [576],
    "self_attn.q_proj": [576, 576],
    "self_attn.k_proj": [192, 576],
    "self_attn.v_proj": [192, 576],
    "self_attn.o_proj": [576, 576],
    "post_attention_layernorm": [576],
    "mlp.gate_proj": [1536, 576],
    "mlp.up_proj": [1536, 576],
    "mlp.down_proj": [576, 1536],
}
LLAMA_SHAPES = {
    "model.embed_tokens.weight": [49152, 576],
    **{
        f"model.layers.{layer}.{name}.weight": shape
        for layer in range(30)
        for name, shape in LLAMA_LAYER.items()
    },
    "model.norm.weight": [576],
}
"""The tensors of SmolLM2-135M as its file lists them."""
CHATML = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are short and kind.<|im_end|>\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
WORDS = ["Answer yes, no or maybe.", "user assistant system tool", "The quick brown fox jumps over it."] * 4


def write_safetensors(path: Path, shapes: dict[str, list[int]], *, dtype: str = "F32") -> None:
    """A file whose header is real and whose numbers are a hole."""
    width = {"F32": 4, "BF16": 2}[dtype]
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, shape in shapes.items():
        count = width
        for dimension in shape:
            count *= dimension
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + count]}
        end += count
    encoded = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(encoded)) + encoded)
        file.truncate(8 + len(encoded) + end)


def write_tokenizer(folder: Path, template: str | None) -> None:
    """A byte-level BPE tokenizer, as transformers writes one."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(
        WORDS,
        trainers.BpeTrainer(
            vocab_size=400,
            special_tokens=special,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token=special[0], eos_token=special[2], pad_token=special[0]
    )
    fast.chat_template = template
    fast.save_pretrained(folder)


@pytest.fixture
def model_folder(tmp_path: Path) -> Callable[..., Path]:
    """Makes a model folder: ``(parameters=..., template=..., dtype=..., **config)``."""

    def make(
        *, parameters: int = 1000, template: str | None = CHATML, dtype: str = "F32", **config: Any
    ) -> Path:
        folder = tmp_path / "model"
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(CONFIG | config))
        write_safetensors(folder / "model.safetensors", {"weight": [parameters]}, dtype=dtype)
        write_tokenizer(folder, template)
        return folder

    return make


@pytest.fixture
def write_weights() -> Callable[..., None]:
    """:func:`write_safetensors`."""
    return write_safetensors


@pytest.fixture
def bare_model(tmp_path: Path) -> Path:
    """A folder with the files of SmolLM2-135M by name and size; its weights are a hole in a file."""
    folder = tmp_path / "bare"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (folder / "tokenizer.json").write_text("{}")
    write_safetensors(folder / "model.safetensors", LLAMA_SHAPES)
    return folder


@pytest.fixture
def llama_shapes() -> dict[str, list[int]]:
    """:data:`LLAMA_SHAPES`."""
    return LLAMA_SHAPES


@pytest.fixture
def demo_model_folder(bare_model: Path) -> Path:
    """A model that `art demo --model` takes: sizes of SmolLM2-135M and a small tokenizer."""
    write_tokenizer(bare_model, CHATML)
    return bare_model


class FakeMachine:
    """Stands for ``/proc`` and ``/sys/fs/cgroup``."""

    def __init__(self, folder: Path) -> None:
        self.proc = folder / "proc"
        self.cgroups = folder / "cgroup"
        (self.proc / "self").mkdir(parents=True)
        self.cgroups.mkdir()
        self.memory(total=16 * GIB, available=12 * GIB)
        self.groups("")

    def memory(self, *, total: int, available: int) -> None:
        lines = f"MemTotal: {total // 1024} kB\nMemFree: 1 kB\nMemAvailable: {available // 1024} kB\n"
        (self.proc / "meminfo").write_text(lines)

    def groups(self, text: str) -> None:
        (self.proc / "self" / "cgroup").write_text(text)

    def group(self, path: str, files: dict[str, object]) -> None:
        folder = self.cgroups / path
        folder.mkdir(parents=True, exist_ok=True)
        for name, value in files.items():
            (folder / name).write_text(f"{value}\n")


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeMachine:
    made = FakeMachine(tmp_path)
    monkeypatch.setattr(machine, "_PROC", made.proc)
    monkeypatch.setattr(machine, "_CGROUPS", made.cgroups)
    return made


@pytest.fixture(autouse=True)
def fresh_package_list() -> Iterator[None]:
    packages.package_problems.cache_clear()
    yield
    packages.package_problems.cache_clear()


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Sets how many GiB of memory can be had."""

    def set_available(gib: float) -> None:
        there = machine.Memory(int(gib * GIB), 16 * GIB, "machine")
        monkeypatch.setattr(machine, "memory", lambda: there)

    return set_available


@pytest.fixture
def room(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Sets how many bytes are free below a folder: ``room(folder, free, device=1)``; elsewhere 100 GB."""
    known: list[tuple[Path, int, int]] = []

    def space(folder: Path) -> machine.Space:
        real = Path(folder).absolute()
        for top, free, device in reversed(known):
            if real == top or top in real.parents:
                return machine.Space(machine.nearest_existing(real), free, 10**12, device)
        return machine.Space(machine.nearest_existing(real), 10**11, 10**12, 1)

    def set_free(folder: Path, free: int, *, device: int = 1) -> None:
        known.append((folder.absolute(), free, device))

    monkeypatch.setattr(machine, "space", space)
    return set_free


@pytest.fixture
def everything_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Takes every extra as installed: what is tested is something else."""
    monkeypatch.setattr(packages, "package_problems", lambda extra="": ())
