"""Forest attention against a brute force over ancestors, in float64."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from art_trainer import BatchError
from art_trainer.attention import forest_attention, plan_forest


def random_forest(rng, length, chance_of_root, depth_bias):
    """Parents of a random forest in depth-first order; -1 is a root."""
    parents, stack = [], []
    for node in range(length):
        if not stack or rng.random() < chance_of_root:
            stack = []
        elif rng.random() > depth_bias:
            stack = stack[: rng.integers(1, len(stack) + 1)]
        parents.append(stack[-1] if stack else -1)
        stack.append(node)
    return parents


def ancestors(parents, node):
    chain = [node]
    while parents[chain[-1]] >= 0:
        chain.append(parents[chain[-1]])
    return chain[::-1]


def describe(parents):
    """``subtree_end`` and depth of each node, from the parents alone."""
    end = np.arange(1, len(parents) + 1)
    for node in reversed(range(len(parents))):
        if parents[node] >= 0:
            end[parents[node]] = max(end[parents[node]], end[node])
    return end, np.array([len(ancestors(parents, node)) - 1 for node in range(len(parents))])


def rotated(x, depth, frequencies):
    """RoPE by complex multiplication, ``[heads, d]`` at one depth."""
    half = x.shape[-1] // 2
    angle = depth * frequencies.double()
    turned = torch.complex(x[:, :half], x[:, half:]) * torch.polar(torch.ones_like(angle), angle)
    return torch.cat((turned.real, turned.imag), -1)


def brute_force(query, key, value, parents, frequencies, scale):
    per_group = query.shape[1] // key.shape[1]
    _, depth = describe(parents)
    queries = torch.stack([rotated(query[n], depth[n], frequencies) for n in range(len(parents))])
    keys = torch.stack([rotated(key[n], depth[n], frequencies) for n in range(len(parents))])
    outputs = []
    for node in range(len(parents)):
        seen = ancestors(parents, node)
        heads = []
        for head in range(query.shape[1]):
            group = head // per_group
            weights = torch.softmax(keys[seen, group] @ queries[node, head] * scale, 0)
            heads.append(weights @ value[seen, group])
        outputs.append(torch.cat(heads))
    return torch.stack(outputs)


def problem(seed, length, groups, per_group, width, chance_of_root, depth_bias):
    rng = np.random.default_rng(seed)
    parents = random_forest(rng, length, chance_of_root, depth_bias)
    generator = torch.Generator().manual_seed(seed)
    query = torch.randn(length, groups * per_group, width, generator=generator, dtype=torch.float64)
    key, value = (
        torch.randn(length, groups, width, generator=generator, dtype=torch.float64) for _ in range(2)
    )
    frequencies = 1.0 / 100.0 ** (torch.arange(0, width, 2, dtype=torch.float32) / width)
    return parents, query, key, value, frequencies


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    length=st.integers(1, 24),
    groups=st.integers(1, 3),
    per_group=st.integers(1, 3),
    block=st.sampled_from([1, 3, 5, 64]),
    chance_of_root=st.sampled_from([0.0, 0.1, 0.5]),
    depth_bias=st.sampled_from([0.3, 0.8, 1.0]),
)
def test_every_query_attends_to_its_ancestors_and_itself(
    seed, length, groups, per_group, block, chance_of_root, depth_bias
):
    parents, query, key, value, frequencies = problem(
        seed, length, groups, per_group, 4, chance_of_root, depth_bias
    )
    end, depth = describe(parents)
    plan = plan_forest(end, depth, frequencies, heads_per_group=per_group, dtype=torch.float64, block=block)
    inputs = [tensor.requires_grad_() for tensor in (query, key, value)]
    expected = brute_force(*inputs, parents, frequencies, 0.5)
    upstream = torch.randn(expected.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    gradients = torch.autograd.grad(expected, inputs, upstream)
    got = forest_attention(*inputs, plan, 0.5)
    # The plan's angles are float32, as in transformers.
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)
    for mine, theirs in zip(torch.autograd.grad(got, inputs, upstream), gradients, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("block", [2, 64])
def test_gradients_equal_finite_differences(block):
    parents, query, key, value, frequencies = problem(4, 9, 2, 2, 4, 0.2, 0.5)
    end, depth = describe(parents)
    plan = plan_forest(end, depth, frequencies, heads_per_group=2, dtype=torch.float64, block=block)
    inputs = [tensor.requires_grad_() for tensor in (query, key, value)]
    assert torch.autograd.gradcheck(lambda *tensors: forest_attention(*tensors, plan, 0.5), inputs)


def test_work_follows_the_visible_keys_not_the_square_of_the_row():
    prompt, branches, length = 200, 16, 200
    end = np.concatenate(
        [np.full(prompt, prompt + branches * length)]
        + [np.full(length, prompt + (branch + 1) * length) for branch in range(branches)]
    )
    depth = np.concatenate([np.arange(prompt)] + [np.arange(prompt, prompt + length)] * branches)
    plan = plan_forest(end, depth, torch.ones(2), heads_per_group=1, dtype=torch.float32)
    visible = sum(int((end[: q + 1] > q).sum()) for q in range(len(end)))
    assert plan.length == 3400
    assert plan.score_count < 1.6 * visible
    assert plan.score_count < 0.12 * plan.length**2


@pytest.mark.parametrize(
    ("end", "message"), [([1, 1, 3], r"subtree_end\[1\] is 1; it must be above 1"), ([4, 2, 3], "at most 3")]
)
def test_an_impossible_subtree_is_refused(end, message):
    with pytest.raises(BatchError, match=message):
        plan_forest(np.array(end), np.arange(3), torch.ones(2), heads_per_group=1, dtype=torch.float32)


def test_scores_do_not_outlive_the_forward_pass():
    length = 512
    query, key, value = (torch.randn(length, 1, 4, requires_grad=True) for _ in range(3))
    plan = plan_forest(
        np.full(length, length), np.arange(length), torch.ones(2), heads_per_group=1, dtype=torch.float32
    )
    out = forest_attention(query, key, value, plan, 1 / math.sqrt(4))
    kept = sum(tensor.numel() for tensor in out.grad_fn.saved_tensors)
    assert kept == 4 * length * 4
