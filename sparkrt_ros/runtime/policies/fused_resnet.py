"""The ResNet with its batch norms folded away and its additions inside the convolutions."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor, nn

from sparkrt_ros.runtime.kernels.forms import ConvForm, ConvWeights, Forms
from sparkrt_ros.runtime.policies.resnet import (
    BasicBlock,
    Bottleneck,
    FrozenBatchNorm2d,
    ResNet,
)


class FusedResNet:
    """Images as ``Forms.pixels`` gives them to features (B, C, h, w) in channels-last memory."""

    def __init__(self, resnet: ResNet, *, forms: Forms) -> None:
        self._stem = forms.conv(ConvWeights.fold(resnet.conv1, resnet.bn1))
        self._pool = forms.pool
        stages = (resnet.layer1, resnet.layer2, resnet.layer3, resnet.layer4)
        self._blocks = [_FusedBlock(block, forms) for stage in stages for block in stage]

    def __call__(self, images: Tensor) -> Tensor:
        x = self._pool(self._stem.relu(images))
        for block in self._blocks:
            x = block(x)
        return x


class _FusedBlock:
    """A residual block of either kind: convolutions, the last of which takes the shortcut."""

    def __init__(self, block: nn.Module, forms: Forms) -> None:
        assert isinstance(block, (BasicBlock, Bottleneck))
        pairs = [(block.conv1, block.bn1), (block.conv2, block.bn2)]
        if isinstance(block, Bottleneck):
            pairs.append((block.conv3, block.bn3))
        folded = [ConvWeights.fold(conv, norm) for conv, norm in pairs]
        self._shortcut: ConvForm | None = None
        if isinstance(block.downsample, nn.Sequential):
            conv, norm = block.downsample
            assert isinstance(conv, nn.Conv2d)
            assert isinstance(norm, FrozenBatchNorm2d)
            shortcut = ConvWeights.fold(conv, norm)
            # Both biases meet in the same sum, so the shortcut needs none of its own.
            folded[-1] = replace(folded[-1], bias=folded[-1].bias + shortcut.bias)
            self._shortcut = forms.conv(shortcut)
        self._inner = [forms.conv(weights) for weights in folded[:-1]]
        self._last = forms.conv(folded[-1])

    def __call__(self, x: Tensor) -> Tensor:
        y = x
        for conv in self._inner:
            y = conv.relu(y)
        shortcut = x if self._shortcut is None else self._shortcut.plain(x)
        return self._last.add_relu(y, shortcut)
