"""Convolutions packed for the size of picture they get, and attention in narrow types."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from sparkrt_ros.runtime.kernels.forms import ConvWeights, PlainForms
from sparkrt_ros.runtime.kernels.onednn import OneDnnConv, OneDnnForms


@pytest.mark.parametrize('kernel', [1, 3])
@pytest.mark.parametrize('dtype', [torch.float32, torch.bfloat16])
def test_every_size_gets_the_same_weights(kernel: int, dtype: torch.dtype) -> None:
    weights = ConvWeights(
        weight=torch.randn(48, 32, kernel, kernel) / 18,
        bias=torch.randn(48),
        stride=(2, 2),
        padding=(kernel // 2, kernel // 2),
        dilation=(1, 1),
    )
    layer = OneDnnConv(weights, dtype=dtype)
    for size in ((2, 32, 30, 40), (1, 32, 7, 9), (2, 32, 30, 40), (1, 32, 64, 64)):
        x = torch.randn(size).to(dtype).contiguous(memory_format=torch.channels_last)
        wanted = F.conv2d(x.float(), weights.weight.to(dtype).float(), None, 2, kernel // 2)
        tolerance = 1e-5 if dtype == torch.float32 else 3e-2
        torch.testing.assert_close(layer.plain(x).float(), wanted, rtol=0, atol=tolerance)
        biased = (wanted + weights.bias.reshape(1, -1, 1, 1)).relu()
        torch.testing.assert_close(layer.relu(x).float(), biased, rtol=0, atol=3 * tolerance)


@pytest.mark.parametrize('keys', [1, 31, 32, 33, 70])
def test_attention_in_bf16_gives_no_weight_to_keys_that_are_not_there(keys: int) -> None:
    cpu = torch.device('cpu')
    q, k, v = (torch.randn(4, rows, 16) for rows in (5, keys, keys))
    # Far from 0, where a key of zeros would be seen.
    k, v = k - 3, v + 10
    wanted = PlainForms(device=cpu, dtype=torch.float32).attend(q, k, v)
    narrow = OneDnnForms(device=cpu, dtype=torch.bfloat16)
    found = narrow.attend(*(x.bfloat16() for x in (q, k, v)))
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.float(), wanted, rtol=0, atol=0.3)
