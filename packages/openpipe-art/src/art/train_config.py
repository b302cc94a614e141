"""What a training step is asked for and what it answers."""

import msgspec

from art.settings import SettingsMeta, flag, keep, number
from art_dataplane import AdvantageRule


class TrainConfig(msgspec.Struct, frozen=True, kw_only=True, metaclass=SettingsMeta):
    """One RL step of :meth:`art.TrainableModel.train`.

    Args:
        learning_rate: AdamW's, in ``(0, 1]``. The default is for models of billions of parameters. An adapter
            on a small one learns next to nothing with it: `art demo`, the guide and the examples (LoRA of
            rank 8, 135 M parameters) use 5e-4, with which they learn in 10 to 20 steps.
        clip_epsilon_low: the ratio of new to old probability is clipped below 1 minus this, in ``(0, 1]``.
        clip_epsilon_high: and above 1 plus this, above 0.
        scale_advantages: divide a group's advantages by the standard deviation of its rewards.
        max_grad_norm: gradients are scaled down to this global L2 norm; ``0`` switches it off.

    Raises:
        SettingError: a value is of a wrong type or out of its range, has no name or one that is none of
            these; it is a ``ValueError``, too.
    """

    learning_rate: float = 5e-6
    clip_epsilon_low: float = 0.2
    clip_epsilon_high: float = 0.28
    scale_advantages: bool = True
    max_grad_norm: float = 1.0

    def __post_init__(self) -> None:
        keep(
            self,
            learning_rate=number("learning_rate", self.learning_rate, 5e-4, above=0, at_most=1),
            clip_epsilon_low=number("clip_epsilon_low", self.clip_epsilon_low, 0.2, above=0, at_most=1),
            clip_epsilon_high=number("clip_epsilon_high", self.clip_epsilon_high, 0.28, above=0),
            scale_advantages=flag("scale_advantages", self.scale_advantages, True),
            max_grad_norm=number("max_grad_norm", self.max_grad_norm, 1.0, at_least=0),
        )

    def advantage_rule(self) -> AdvantageRule:
        """How rewards become advantages in such a step."""
        return AdvantageRule(scale="std" if self.scale_advantages else "none")


class TrainResult(msgspec.Struct, frozen=True):
    """A finished step.

    Args:
        step: the policy version that is active now.
        metrics: numbers by name: ``reward``, ``loss`` and the like; names that end in ``_s`` are seconds, in
            ``_bytes`` bytes. ``skipped`` is 1 when the rewards held nothing to learn from and no step was
            taken.
    """

    step: int
    metrics: dict[str, float] = {}
