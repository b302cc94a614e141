"""Selected log-probs on a CUDA device against float64 on the CPU. Not run on a machine without a GPU."""

import pytest
import torch

from art_kernels import selected_logprobs

ENTRIES, HIDDEN, VOCABULARY = 96, 256, 32_000


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-4), (torch.bfloat16, 5e-2)])
def test_values_and_gradients_equal_float64(dtype: torch.dtype, tolerance: float) -> None:
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(ENTRIES, HIDDEN, generator=generator).to(dtype)
    weight = (torch.randn(VOCABULARY, HIDDEN, generator=generator) / HIDDEN**0.5).to(dtype)
    targets = torch.randint(0, VOCABULARY, (ENTRIES,), generator=generator)
    temperature = torch.full((ENTRIES,), 0.8)
    upstream = torch.randn(ENTRIES, generator=generator)

    exact = hidden.double().requires_grad_()
    logits = exact @ weight.double().T / 0.8
    expected = torch.log_softmax(logits, -1).gather(1, targets[:, None])[:, 0]
    torch.autograd.backward((expected * upstream.double()).sum())

    mine = hidden.cuda().requires_grad_()
    found = selected_logprobs(mine, weight.cuda(), targets.cuda(), temperature.cuda()).logprobs
    torch.autograd.backward((found * upstream.cuda()).sum())

    assert exact.grad is not None
    assert mine.grad is not None
    assert float((found.double().cpu() - expected).norm() / expected.norm()) < tolerance
    assert float((mine.grad.double().cpu() - exact.grad).norm() / exact.grad.norm()) < tolerance
