"""The whole loop on a tiny Qwen 3: trainer and vLLM agree on a family with norms per head and wide heads."""

from pathlib import Path

import pytest
import torch
from art_testing.leftovers import LeftoverChecker
from art_testing.loop_run import LoopRun
from art_testing.tiny_model import make_tiny_qwen3
from peft import PeftModel
from transformers import AutoModelForCausalLM

STEPS = 4


@pytest.fixture(scope="module", params=["tied", "untied"])
def tiny_qwen3(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model") / "tiny"
    if request.param == "tied":
        return make_tiny_qwen3(folder)
    return make_tiny_qwen3(folder, seed=1, tied=False, head_dim=32, layers=3)


def adapter_effect(model: Path, generation: Path) -> float:
    """Mean difference that an adapter makes to log-probs of arbitrary text, by transformers and peft."""
    base = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    adapted = PeftModel.from_pretrained(base, generation)
    text = torch.randint(0, 320, (2, 24), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        logprobs = torch.log_softmax(adapted(text).logits, -1)
        with adapted.disable_adapter():
            untrained = torch.log_softmax(adapted(text).logits, -1)
    return float((logprobs - untrained).abs().mean())


def test_trainer_and_sampler_agree_on_every_version(
    tiny_qwen3: Path, tmp_path: Path, checker: LeftoverChecker
) -> None:
    run_dir = tmp_path / "run"
    with LoopRun(tiny_qwen3, run_dir, checker, STEPS) as run:
        run.ready()
        steps = [run.step() for _ in range(STEPS)]
        run.wait_for("AGAIN", 10)
        assert run.end(30) == 0, run.output
        checker.assert_clean(within_s=5)

    assert [step["step"] for step in steps] == list(range(1, STEPS + 1))
    for step in steps:
        assert step["loss_entries"] == step["sampler_difference_count"] > 0, (
            "all tokens are of the newest version"
        )
        # Both compute in float32: what is left is the order of summation.
        assert step["sampler_difference_mean"] < 2e-5
        assert step["sampler_difference_p99"] < 1e-4
        assert step["gradient_norm"] > 0
    # The last step's tokens were sampled with this adapter: agreement means that vLLM really applied it.
    (generation,) = (run_dir / "generations").glob(f"step-{STEPS - 1:08}-*")
    assert adapter_effect(tiny_qwen3, generation) > 100 * steps[-1]["sampler_difference_mean"]
