"""Run folders as programs leave them, made from the structs of `art.reporting.run_folder`."""

import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from art.reporting.run_folder import (
    EVALUATIONS,
    METRICS,
    PHASES,
    RUN,
    TRAJECTORIES,
    EvaluationLine,
    ExchangeLine,
    PhaseLine,
    RunDescription,
    TrajectoryLine,
    append_lines,
    evaluation_file,
    step_file,
)

REWARDS = {"yes": 0.5, "no": 0.75, "maybe": 1.0}
OTHER = ("1. Yes\n", "I would say that it depends", "What a joke but it is a", "Sure! Yes, no", "«Peut-être»")
PROMPT = "<|im_start|>user\nOne word only: {}.<|im_end|>\n<|im_start|>assistant\n"
ORDERS = ("yes, no or maybe", "no, maybe, or yes", "maybe or no or yes", "yes, no, maybe")

DESCRIPTION = RunDescription(
    name="yes-no-maybe",
    art_version="0.1.0",
    model="SmolLM2-135M-Instruct",
    model_folder="/models/SmolLM2-135M-Instruct",
    started_unix_s=1_796_000_000.0,
    finished=True,
    settings={"steps": 25, "prompts": 4, "samples": 16, "learning_rate": 5e-4, "seed": 0, "run_dir": None},
)


class FolderMaker:
    """Writes a run like the demo's into ``folder``; its rewards rise over the first half of the steps."""

    def __init__(self, folder: Path, seed: int = 0) -> None:
        self.folder = folder
        self.random = random.Random(seed)
        (folder / TRAJECTORIES).mkdir(parents=True)

    def run(self, steps: int, groups: int = 4, samples: int = 16, with_tokens: int = 4) -> Path:
        """The whole folder."""
        self.describe()
        append_lines(
            self.folder / PHASES,
            [
                PhaseLine(name="model SmolLM2-135M-Instruct", duration_s=0.4),
                PhaseLine(name="rollout workers, vLLM and trainer", duration_s=12.9),
            ],
        )
        self.evaluation(0, 0, 0.0)
        elapsed, version = 14.0, 0
        for step in range(1, steps + 1):
            skill = min(1.0, 2 * (step - 1) / max(steps, 2))
            lines = self.rollouts(step, version, skill, groups, samples, with_tokens)
            append_lines(step_file(self.folder, step), lines)
            skipped = all(line.advantage is None for line in lines)
            version += not skipped
            metrics = self.metrics(step, version, lines, skipped=skipped)
            elapsed += metrics["rollout_s"] + metrics["train_s"]
            append_lines(self.folder / METRICS, [metrics | {"elapsed_s": elapsed}])
        if steps:
            self.evaluation(steps, version, 0.97)
        return self.folder

    def describe(self, **changes: Any) -> None:
        """`run.json`."""
        described = msgspec.structs.replace(DESCRIPTION, **changes)
        (self.folder / RUN).write_bytes(msgspec.json.encode(described))

    def evaluation(self, step: int, version: int, skill: float) -> None:
        """32 held-out prompts."""
        lines = self.rollouts(step, version, skill, 32, 1, 1)
        append_lines(evaluation_file(self.folder, "held-out", version), lines)
        reward = math.fsum(line.reward for line in lines) / len(lines)
        append_lines(
            self.folder / EVALUATIONS,
            [
                EvaluationLine(
                    name="held-out",
                    step=step,
                    policy_version=version,
                    reward=reward,
                    trajectories=len(lines),
                    duration_s=2.1,
                )
            ],
        )

    def rollouts(
        self, step: int, version: int, skill: float, groups: int, samples: int, with_tokens: int
    ) -> list[TrajectoryLine]:
        """The trajectories of one step, with advantages relative to their group."""
        lines = []
        for group in range(groups):
            prompt = PROMPT.format(ORDERS[group % len(ORDERS)])
            answers = [self.answer(skill) for _ in range(samples)]
            rewards = [REWARDS.get(answer, 0.0) for answer in answers]
            mean = math.fsum(rewards) / samples
            deviation = math.sqrt(math.fsum((reward - mean) ** 2 for reward in rewards) / samples)
            for index, (answer, reward) in enumerate(zip(answers, rewards, strict=True)):
                exchange = self.exchange(prompt, answer, version, skill)
                lines.append(
                    TrajectoryLine(
                        step=step,
                        group=group,
                        reward=reward,
                        advantage=(reward - mean) / deviation if deviation and samples > 1 else None,
                        metrics={"completion_tokens": float(len(exchange.tokens))},
                        metadata={
                            "prompt": f"One word only: {ORDERS[group % len(ORDERS)]}.",
                            "answer": answer,
                        },
                        record=f"{step:04}{group:02}{index:02}",
                        worker=f"rollout worker {index % 2} (pid {100 + index % 2})",
                        exchanges=(exchange,) if index < with_tokens else (),
                    )
                )
        return lines

    def answer(self, skill: float) -> str:
        """Text that a policy so able gives."""
        if skill >= 1:
            return "maybe"
        if self.random.random() > 0.1 + skill:
            return self.random.choice(OTHER)
        return self.random.choices(list(REWARDS), [1, 0.6, 0.2 + 9 * skill**2])[0]

    def exchange(self, prompt: str, answer: str, version: int, skill: float) -> ExchangeLine:
        """Its tokens are whole words and the end of the turn."""
        words = answer.replace(" ", "\0 ").split("\0")
        tokens = (*words, "<|im_end|>")
        logprobs = tuple(-self.random.expovariate(0.4 + 8 * skill) for _ in tokens)
        return ExchangeLine(
            prompt=prompt, tokens=tokens, logprobs=logprobs, versions=(version,) * len(tokens)
        )

    def metrics(
        self, step: int, version: int, lines: list[TrajectoryLine], *, skipped: bool
    ) -> dict[str, float]:
        """The numbers of a step, but for `elapsed_s`; a step without an update has fewer."""
        noise = self.random.uniform
        tokens = math.fsum(line.metrics["completion_tokens"] for line in lines)
        known = {
            "step": step,
            "policy_version": version,
            "reward": math.fsum(line.reward for line in lines) / len(lines),
            "reward_std": 0.3,
            "trajectories": float(len(lines)),
            "tokens_per_s": noise(60, 110),
            "rollout_s": tokens / 90 + noise(0.5, 1.0),
            "logical_tokens": 45.0 * len(lines) + tokens,
            "loss_entries": tokens,
            "physical_tokens": 45.0 * 4 + tokens / 3,
        }
        if skipped:
            return known | {
                "skipped": 1.0,
                "train_s": 0.01,
                "loss_entries": 0.0,
                "logical_tokens": 0.0,
                "physical_tokens": 0.0,
            }
        forward = known["physical_tokens"] / 180 * noise(0.9, 1.1)
        return known | {
            "skipped": 0.0,
            "train_s": forward + noise(0.1, 0.2),
            "train_forward_backward_s": forward,
            "train_optimizer_s": noise(0.002, 0.003),
            "train_snapshot_s": noise(0.02, 0.06),
            "pack_fetch_s": noise(0.003, 0.009),
            "publish_s": noise(0.04, 0.1),
            "publish_wait_s": noise(0.03, 0.08),
            "durability_s": noise(0.3, 0.8),
            "sampler_difference_mean": noise(4e-6, 1.4e-5),
            "sampler_difference_p99": noise(1.3e-5, 6e-5),
            "sampler_difference_max": noise(6e-5, 9e-5),
            "loss": noise(-0.3, 0.3),
            "gradient_norm": noise(0.2, 1.5),
            "entropy_mean": noise(0.2, 3.2),
        }


@pytest.fixture
def maker(tmp_path: Path) -> FolderMaker:
    """Makes one run's folder."""
    return FolderMaker(tmp_path / "run")


@pytest.fixture
def run_of(maker: FolderMaker) -> Callable[..., Path]:
    """`run_of(steps)` is the folder of a run like the demo's."""
    return maker.run
