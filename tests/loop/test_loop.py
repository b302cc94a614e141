"""The whole loop with its real parts on a tiny model: Monarch, megatron-core, vLLM, generations on disk."""

import json
from pathlib import Path

import pytest
from art_testing.leftovers import LeftoverChecker, marked_processes
from art_testing.loop_run import LoopRun
from safetensors.numpy import load_file

STEPS = 3
LOOPBACK = ("127.0.0.1", "::1")


def generations(run_dir: Path) -> list[str]:
    return sorted(path.name.split("-")[1] for path in (run_dir / "generations").glob("step-*"))


def test_it_trains_resumes_and_leaves_nothing(
    tiny_model: Path, tmp_path: Path, checker: LeftoverChecker
) -> None:
    run_dir = tmp_path / "run"
    with LoopRun(tiny_model, run_dir, checker, STEPS) as run:
        run.ready()
        for process in marked_processes(checker.mark):
            for connection in process.net_connections("inet"):
                assert connection.status != "LISTEN" or connection.laddr.ip in LOOPBACK, connection
        assert "cannot be trained on together" in run.wait_for("TWICE", 60)
        steps = [run.step() for _ in range(STEPS)]
        assert "12 of these trajectories were used already" in run.wait_for("AGAIN", 10)
        assert "is not registered" in run.wait_for("CLOSED", 30)
        assert run.end(30) == 0, run.output
        checker.assert_clean(within_s=5)

    assert [step["step"] for step in steps] == [1, 2, 3]
    for step in steps:
        # 3 groups of 4 answers; all that was sampled is trained on, and shared prompts are computed once.
        assert step["trajectories"] == step["trajectory_count"] == 12
        assert step["loss_entries"] == step["sampler_difference_count"]
        assert step["physical_tokens"] < step["logical_tokens"]
        # Trainer and sampler both compute in float32: what is left is the order of summation.
        assert step["sampler_difference_mean"] < 2e-5
        assert step["sampler_difference_p99"] < 1e-4
        assert step["gradient_norm"] > 0
    assert generations(run_dir) == ["00000000", "00000001", "00000002", "00000003"]
    newest = max((run_dir / "generations").glob("step-00000003-*"))
    assert json.loads((newest / "adapter_config.json").read_text())["r"] == 8
    trained = load_file(newest / "adapter_model.safetensors")
    assert all(abs(tensor).max() > 0 for name, tensor in trained.items() if "lora_B" in name)

    with LoopRun(tiny_model, run_dir, checker, 0, resume=True) as run:  # nothing new has to become durable
        run.ready()
        assert run.end(30) == 0, run.output

    with LoopRun(tiny_model, run_dir, checker, 1, resume=True) as run:
        run.ready()
        assert run.step()["step"] == 4
        assert run.end(30) == 0, run.output
        checker.assert_clean(within_s=5)
    assert generations(run_dir)[-1] == "00000004"


def test_a_folder_that_holds_a_run_is_refused(
    tiny_model: Path, tmp_path: Path, checker: LeftoverChecker
) -> None:
    (tmp_path / "run" / "generations" / f"step-00000007-{'a' * 32}").mkdir(parents=True)
    with LoopRun(tiny_model, tmp_path / "run", checker, 1) as run:
        assert run.end(240) == 1
        assert "step-00000007" in run.output
        checker.assert_clean(within_s=20)


@pytest.mark.parametrize("missing", ["config.json", "tokenizer.json"])
def test_a_folder_that_is_no_model_is_refused(
    tiny_model: Path, tmp_path: Path, checker: LeftoverChecker, missing: str
) -> None:
    broken = tmp_path / "broken"
    broken.mkdir()
    for path in tiny_model.iterdir():
        if path.name != missing:
            (broken / path.name).write_bytes(path.read_bytes())
    with LoopRun(broken, tmp_path / "run", checker, 1) as run:
        assert run.end(60) == 1
        assert missing in run.output
        checker.assert_clean(within_s=20)
