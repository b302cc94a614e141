"""Weights that are not those of ``config.json`` are named, with both shapes, before anything starts."""

from pathlib import Path

from art.checks import State
from art.checks.model_files import StoredTensor, read_weights
from art.checks.weights import weights_check, weights_problem

EXPECTED = {"model.embed.weight": (8, 4), "model.layers.0.q.weight": (4, 4), "model.norm.weight": (4,)}
OUTPUT = {"lm_head.weight": (8, 4)}


def stored(shapes, dtype="F32"):
    file = Path("/m/model.safetensors")
    return {name: StoredTensor(tuple(shape), dtype, file) for name, shape in shapes.items()}


def test_what_is_described_is_taken():
    assert weights_problem(stored(EXPECTED), EXPECTED) is None
    assert weights_problem(stored(EXPECTED, "BF16"), EXPECTED) is None


def test_a_tied_models_stored_output_is_not_used_and_does_not_matter():
    assert weights_problem(stored(EXPECTED | {"lm_head.weight": (1, 1)}), EXPECTED) is None


def test_an_untied_models_output_must_be_there():
    problem = weights_problem(stored(EXPECTED), EXPECTED | OUTPUT)
    assert problem is not None
    assert problem.startswith("lm_head.weight is missing: the files have none, config.json says [8, 4]")
    assert "tie_word_embeddings" in problem


def test_another_shape_is_told_with_both():
    problem = weights_problem(stored(EXPECTED | {"model.layers.0.q.weight": (4, 8)}), EXPECTED)
    assert problem == (
        "model.layers.0.q.weight is of another shape: F32 [4, 8] in model.safetensors, "
        "config.json says [4, 4]"
    )


def test_a_missing_tensor_is_told():
    few = {name: shape for name, shape in EXPECTED.items() if name != "model.norm.weight"}
    problem = weights_problem(stored(few), EXPECTED)
    assert problem == "model.norm.weight is missing: the files have none, config.json says [4]"


def test_a_tensor_that_is_not_described_is_told():
    problem = weights_problem(stored(EXPECTED | {"model.layers.1.q.weight": (4, 4)}), EXPECTED)
    assert problem == (
        "model.layers.1.q.weight is not expected: F32 [4, 4] in model.safetensors, config.json describes none"
    )


def test_what_no_program_reads_does_not_matter():
    more = {"model.layers.0.self_attn.rotary_emb.inv_freq": (2,)}
    assert weights_problem(stored(EXPECTED | more), EXPECTED) is None


def test_codes_of_a_quantized_model_are_refused():
    problem = weights_problem(stored(EXPECTED, "I8"), EXPECTED)
    assert problem is not None
    assert "is of a dtype that is not trained: I8 [8, 4]" in problem


def test_many_differences_are_one_message_that_counts_them():
    many = {f"model.layers.{index}.q.weight": (4, 4) for index in range(30)}
    problem = weights_problem(stored({}), many)
    assert problem is not None
    assert "; so are 29 more: model.layers.1.q.weight" in problem
    assert problem.endswith("and 25 more")


def test_the_check_reads_the_files(bare_model, llama_shapes):
    wanted = {name: tuple(shape) for name, shape in llama_shapes.items()}
    assert weights_check(bare_model, wanted).state is State.OK
    assert sum(tensor.count for tensor in read_weights(bare_model).values()) == 134_515_008
    other = weights_check(bare_model, wanted | {"model.norm.weight": (577,)})
    assert (other.name, other.state) == ("weights", State.FAILURE)
    assert "F32 [576] in model.safetensors, config.json says [577]" in other.found
    (bare_model / "model.safetensors").write_bytes(b"")
    assert "too short to have a header" in weights_check(bare_model, wanted).found
