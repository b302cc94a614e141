"""Log-probabilities of a row's loss entries under the model as it is."""

from art_kernels import SelectedLogprobs, selected_logprobs
from art_trainer.model import TrainableModel
from art_trainer.rows import PackedRow


def row_logprobs(model: TrainableModel, row: PackedRow) -> SelectedLogprobs:
    """Forward pass of one row; float32 ``[L]`` log-probabilities with gradients, and entropies without.

    The logits are divided by each entry's sampling temperature, as the sampler's were.
    """
    return selected_logprobs(
        model.hidden_states(row),
        model.output_weight,
        row.loss.target,
        row.loss.temperature,
        source=row.loss.source,
        with_entropy=True,
    )
