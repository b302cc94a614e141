"""The layers with own autograd rules equal torch's composed operations."""

from types import SimpleNamespace

import pytest
import torch

from art_trainer.layers import RMSNorm, SwiGLU, rms_norm, swiglu
from art_trainer.layout import FusedLayout


def test_rms_norm_equals_torch_and_its_gradients_finite_differences():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(3, 1, 6, generator=generator, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(6, generator=generator, dtype=torch.float64, requires_grad=True)
    torch.testing.assert_close(rms_norm(x, weight, 1e-3), torch.nn.functional.rms_norm(x, (6,), weight, 1e-3))
    assert torch.autograd.gradcheck(lambda *inputs: rms_norm(*inputs, 1e-3), (x, weight))
    assert torch.autograd.gradcheck(lambda x: rms_norm(x, weight.detach(), 1e-3), (x,))


def test_rms_norm_of_bfloat16_has_float32_statistics():
    x = torch.randn(4, 256, generator=torch.Generator().manual_seed(0)).bfloat16() * 30
    norm = RMSNorm(SimpleNamespace(params_dtype=torch.bfloat16), 256, eps=1e-6)
    expected = x.double() / (x.double().square().mean(-1, keepdim=True) + 1e-6).sqrt()
    assert norm(x).dtype == torch.bfloat16
    torch.testing.assert_close(norm(x).double(), expected, rtol=8e-3, atol=8e-3)


def test_swiglu_equals_torch_and_its_gradients_finite_differences():
    fused = torch.randn(
        3, 1, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64, requires_grad=True
    )
    gate, up = fused.chunk(2, -1)
    torch.testing.assert_close(SwiGLU(None)(fused), torch.nn.functional.silu(gate) * up)
    assert torch.autograd.gradcheck(swiglu, (fused,))


@pytest.mark.parametrize(("rows", "groups"), [((6,), 1), ((4, 4), 1), ((8, 4, 4), 4), ((12, 2, 2), 2)])
def test_split_undoes_merge(rows, groups):
    layout = FusedLayout(tuple("abc"[: len(rows)]), rows, groups)
    parts = [torch.randn(count, 3) for count in rows]
    fused = layout.merge(parts)
    assert fused.shape == (layout.total_rows, 3)
    assert all(torch.equal(mine, part) for mine, part in zip(layout.split(fused), parts, strict=True))


def test_groups_interleave_as_megatron_stores_query_key_value():
    layout = FusedLayout(("q", "k", "v"), (4, 2, 2), groups=2)
    query, key, value = (torch.tensor(rows)[:, None] for rows in ([1, 2, 3, 4], [10, 20], [100, 200]))
    assert layout.merge([query, key, value])[:, 0].tolist() == [1, 2, 10, 100, 3, 4, 20, 200]
