"""What a configuration says of a model's structure that no reading here understands: refused, not planned
wrongly.

Known fields are named with what they mean. Of unknown ones those are refused whose names speak of experts,
state-space layers, cross attention or an encoder, unless they are switched off (null, false, 0 or empty) or
only steer training.
"""

import re

from art_topology.models.fields import Fields

UNREAD = {
    "hybrid_override_pattern": "a pattern of state-space, attention and feed-forward layers",
    "mamba_d_state": "the state size of Mamba layers",
    "mamba_num_heads": "the heads of Mamba layers",
    "ssm_state_size": "the state size of state-space layers",
    "interleave_moe_layer_step": "how dense and expert layers alternate (Llama 4), with sizes of their own",
    "linear_attn_config": "linear attention of another kind (Kimi delta attention)",
    "altup_num_inputs": "alternating updates of several streams (Gemma 3n)",
    "laurel_rank": "low-rank residual layers (Gemma 3n)",
    "encoder_layers": "an encoder beside the decoder",
    "num_zero_experts": "experts that compute nothing",
    "zero_expert_num": "experts that compute nothing",
    "conv_L_cache": "short convolutions in place of attention (LFM2)",
}
"""Fields of structure that no reading here understands, and what they mean: a configuration that sets one is
refused rather than planned wrongly."""

_STRUCTURE = re.compile(
    r"expert|moe|ssm|state_size|mamba|rwkv|recurrent|lru_width|hybrid|cross_attention|cross_attn|encoder"
    r"|decoder_layers|dt_rank"
)
_NO_STRUCTURE = re.compile(
    r"aux|loss|coef|jitter|logits|dtype|dropout|noise|scor|scaling|norm_|_norm|bias_update|implementation"
    r"|capacity|balance|init|ngram|_groups?$|gate_act|router_(?!topk|top_k)"
)
"""What steers training, precision or the choice among experts, and has no weights of its own."""
_ENCODERS = re.compile(r"bert|electra|^(m|um|long)?t5|bart|pegasus|xlnet|^xlm|deberta|whisper|marian")
_MASKED = re.compile(r"For(MaskedLM|PreTraining|TokenClassification|QuestionAnswering)$")


def refuse_encoders(fields: Fields, model_type: str) -> None:
    """Records a problem if the configuration is of an encoder: attention without an order of tokens."""
    reasons = []
    if _ENCODERS.search(model_type):
        reasons.append(f"model_type is {model_type!r}")
    names = fields.raw("architectures")
    named = names if isinstance(names, list | tuple) else ()
    reasons += [f"architectures has {name!r}" for name in named if _MASKED.search(str(name))]
    if fields.raw("type_vocab_size"):
        reasons.append("type_vocab_size is set (embeddings of segments)")
    if fields.raw("is_encoder_decoder"):
        reasons.append("is_encoder_decoder is true")
    if reasons:
        fields.problem(f"{', '.join(reasons)}: a model with an encoder, and only decoders can be planned")


def refuse_unread(fields: Fields) -> None:
    """Records a problem for every field of structure that nothing has read."""
    for name in fields.unread():
        if _STRUCTURE.search(name) and not _NO_STRUCTURE.search(name):
            fields.problem(
                f"{name} is set, which no reading here understands: it speaks of structure, so the model "
                "is refused rather than planned without it"
            )
