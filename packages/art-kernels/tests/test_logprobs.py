"""Equality with the plain computation, gradients by finite differences and autograd, and the memory bound."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from art_kernels import selected_logprobs


def plain(hidden, weight, targets, temperature, source):
    logits = hidden[source] @ weight.t() / temperature[:, None]
    return torch.log_softmax(logits, -1).gather(1, targets[:, None])[:, 0]


def plain_entropy(hidden, weight, temperature, source):
    logprobs = torch.log_softmax(hidden[source] @ weight.t() / temperature[:, None], -1)
    return -(logprobs.exp() * logprobs).sum(-1).detach()


def problem(seed, positions, width, vocabulary, entries, dtype=torch.float64, temperatures=(0.7, 1.0, 1.3)):
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(positions, width, generator=generator, dtype=dtype)
    weight = torch.randn(vocabulary, width, generator=generator, dtype=dtype)
    source = torch.randint(0, positions, (entries,), generator=generator)
    targets = torch.randint(0, vocabulary, (entries,), generator=generator)
    choice = torch.randint(0, len(temperatures), (entries,), generator=generator)
    return hidden, weight, targets, torch.tensor(temperatures, dtype=dtype)[choice], source


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    positions=st.integers(1, 9),
    vocabulary=st.integers(1, 17),
    entries=st.integers(0, 24),
    chunk_byte_count=st.sampled_from([1, 100, 300, 1 << 20]),
    train_weight=st.booleans(),
)
def test_value_entropy_and_gradients_equal_the_plain_computation(
    seed, positions, vocabulary, entries, chunk_byte_count, train_weight
):
    hidden, weight, targets, temperature, source = problem(seed, positions, 5, vocabulary, entries)
    upstream = torch.randn(entries, generator=torch.Generator().manual_seed(seed + 1), dtype=torch.float64)
    hidden.requires_grad_()
    weight.requires_grad_(train_weight)
    inputs = [hidden, weight] if train_weight else [hidden]
    want = plain(hidden, weight, targets, temperature, source)
    want_gradients = torch.autograd.grad(want, inputs, upstream)
    got = selected_logprobs(
        hidden,
        weight,
        targets,
        temperature,
        source=source,
        with_entropy=True,
        chunk_byte_count=chunk_byte_count,
    )
    torch.testing.assert_close(got.logprobs, want, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(
        got.entropy, plain_entropy(hidden, weight, temperature, source), rtol=1e-9, atol=1e-9
    )
    for mine, theirs in zip(torch.autograd.grad(got.logprobs, inputs, upstream), want_gradients, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("train_weight", [False, True])
def test_gradients_equal_finite_differences(train_weight):
    hidden, weight, targets, temperature, source = problem(3, 4, 3, 7, 9)
    hidden.requires_grad_()
    weight.requires_grad_(train_weight)

    def compute(hidden, weight):
        return selected_logprobs(
            hidden, weight, targets, temperature, source=source, chunk_byte_count=120
        ).logprobs

    assert torch.autograd.gradcheck(compute, (hidden, weight))


def test_without_source_entry_l_reads_row_l():
    hidden, weight, targets, temperature, _ = problem(5, 6, 4, 11, 6)
    got = selected_logprobs(hidden, weight, targets, temperature)
    torch.testing.assert_close(got.logprobs, plain(hidden, weight, targets, temperature, torch.arange(6)))
    assert got.entropy is None


def test_float32_stays_within_float32_rounding_of_float64():
    hidden, weight, targets, temperature, source = problem(7, 64, 32, 4096, 200)
    got = selected_logprobs(
        hidden.float(), weight.float(), targets, temperature.float(), source=source, chunk_byte_count=1 << 16
    )
    assert got.logprobs.dtype == torch.float32
    want = plain(hidden, weight, targets, temperature, source)
    assert float((got.logprobs.double() - want).abs().max()) < 2e-4 * float(want.abs().max())


def test_bfloat16_gives_float32_logprobs_and_bfloat16_gradients():
    hidden, weight, targets, temperature, source = problem(9, 16, 32, 256, 20, dtype=torch.float32)
    hidden, weight = hidden.bfloat16().requires_grad_(), weight.bfloat16()
    got = selected_logprobs(hidden, weight, targets, temperature, source=source)
    want = plain(hidden.detach().double(), weight.double(), targets, temperature.double(), source)
    assert got.logprobs.dtype == torch.float32
    assert float((got.logprobs.detach() - want).abs().max()) < 0.2
    got.logprobs.sum().backward()
    assert hidden.grad.dtype == torch.bfloat16


def test_large_logits_do_not_overflow():
    hidden = torch.tensor([[1000.0, -1000.0]], requires_grad=True)
    weight = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    got = selected_logprobs(hidden, weight, torch.tensor([1]), torch.tensor([1.0]))
    assert float(got.logprobs.detach()) == -2000.0
    got.logprobs.backward()
    torch.testing.assert_close(hidden.grad, torch.tensor([[-1.0, 1.0]]))


class LargestTensor(TorchDispatchMode):
    """Records the most elements of any new tensor, and how many rows were projected on 500 tokens."""

    def __init__(self):
        super().__init__()
        self.elements = 0
        self.projected_rows = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor):
            inputs = {
                tensor.untyped_storage().data_ptr() for tensor in args if isinstance(tensor, torch.Tensor)
            }
            if result.untyped_storage().data_ptr() not in inputs:
                self.elements = max(self.elements, result.numel())
            if function is torch.ops.aten.mm.default and result.shape[1] == 500:
                self.projected_rows += result.shape[0]
        return result


def test_logits_are_bounded_and_shared_sources_are_projected_once():
    hidden, weight, targets, temperature, _ = problem(11, 40, 4, 500, 400, torch.float32, temperatures=(1.0,))
    source = torch.arange(400) % 20
    hidden.requires_grad_()
    with LargestTensor() as seen:
        got = selected_logprobs(
            hidden, weight, targets, temperature, source=source, chunk_byte_count=3 * 500 * 4
        )
        got.logprobs.sum().backward()
    assert seen.projected_rows == 20
    assert seen.elements <= 400 * 4
    torch.testing.assert_close(
        got.logprobs, plain(hidden, weight, targets, temperature, source), rtol=1e-5, atol=1e-5
    )


def test_a_frozen_weight_gets_no_gradient_and_no_second_projection():
    hidden, weight, targets, temperature, source = problem(13, 8, 4, 500, 10, torch.float32)
    hidden.requires_grad_()
    got = selected_logprobs(hidden, weight, targets, temperature, source=source)
    with LargestTensor() as seen:
        got.logprobs.sum().backward()
    assert seen.projected_rows == 0
    assert weight.grad is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"targets": torch.tensor([0, 5])}, r"targets reaches from 0 to 5; it must stay in \[0, 5\)"),
        ({"source": torch.tensor([-1, 0])}, r"source reaches from -1 to 0"),
        ({"temperature": torch.tensor([1.0, 0.0])}, "lowest temperature is 0.0"),
        ({"temperature": torch.ones(3)}, r"temperature has shape \(3,\)"),
        ({"weight": torch.ones(5, 4)}, "one H"),
        ({"weight": torch.ones(5, 3, dtype=torch.float64)}, "weight is torch.float64"),
        ({"chunk_byte_count": 0}, "chunk_byte_count is 0"),
    ],
)
def test_wrong_input_is_refused_with_its_numbers(change, message):
    arguments = {
        "hidden": torch.ones(2, 3),
        "weight": torch.ones(5, 3),
        "targets": torch.tensor([0, 1]),
        "temperature": torch.ones(2),
        "source": torch.tensor([0, 1]),
    }
    with pytest.raises(ValueError, match=message):
        selected_logprobs(**{**arguments, **change})
