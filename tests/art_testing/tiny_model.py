"""Tiny random models with a working tokenizer and chat template, made on the spot.

Small enough that a full loop takes seconds, real enough for vLLM, megatron-core, transformers and peft:
grouped-query attention, tied or untied embeddings, a byte-level BPE tokenizer.
"""

from pathlib import Path
from typing import Any

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TEXT = ["Answer yes, no or maybe.", "maybe yes no", "user assistant system", "The quick brown fox jumps."] * 4


SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")


def make_tiny_llama(
    folder: Path,
    *,
    seed: int = 0,
    vocab_size: int = 320,
    hidden_size: int = 128,
    layers: int = 2,
    tied: bool = True,
) -> Path:
    """Writes a Llama in float32 and its tokenizer in Hugging Face form and returns the folder."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(**_settings(vocab_size, hidden_size, layers, tied), rope_theta=10_000.0)
    return _write(folder, LlamaForCausalLM, config, seed)


def make_tiny_qwen3(
    folder: Path,
    *,
    seed: int = 0,
    vocab_size: int = 320,
    hidden_size: int = 128,
    layers: int = 2,
    tied: bool = True,
    head_dim: int = 64,
) -> Path:
    """Writes a Qwen 3 in float32 and its tokenizer; its four heads are ``4 * head_dim`` wide together.

    The norms of queries and keys get random weights: norms of ones would not show which is which.
    """
    from transformers import Qwen3Config, Qwen3ForCausalLM

    settings = _settings(vocab_size, hidden_size, layers, tied)
    rope = {"rope_type": "default", "rope_theta": 1_000_000.0}
    return _write(
        folder, Qwen3ForCausalLM, Qwen3Config(**settings, head_dim=head_dim, rope_parameters=rope), seed
    )


def _settings(vocab_size: int, hidden_size: int, layers: int, tied: bool) -> dict[str, Any]:
    return {
        "vocab_size": vocab_size,
        "hidden_size": hidden_size,
        "intermediate_size": 2 * hidden_size,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 2048,
        "tie_word_embeddings": tied,
        "bos_token_id": 0,
        "eos_token_id": 2,
        "initializer_range": 0.2,
    }


def _write(folder: Path, model_class: Any, config: Any, seed: int) -> Path:
    import torch

    _write_tokenizer(folder, config.vocab_size)
    torch.manual_seed(seed)
    model = model_class(config).to(torch.float32)
    for name, parameter in model.named_parameters():
        if name.endswith(("q_norm.weight", "k_norm.weight")):
            torch.nn.init.uniform_(parameter, 0.5, 1.5)
    model.save_pretrained(folder)
    return folder


def _write_tokenizer(folder: Path, vocab_size: int) -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXT, trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token=SPECIAL[0], eos_token=SPECIAL[2], pad_token=SPECIAL[0]
    )
    fast.chat_template = CHAT_TEMPLATE
    fast.save_pretrained(folder)
