"""The ResNet with its batch norms folded away and its additions inside the convolutions."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor, nn

from sparkrt_ros.runtime.kernels.forms import ConvForm, ConvWeights, Forms, Wires
from sparkrt_ros.runtime.policies.resnet import (
    BasicBlock,
    Bottleneck,
    FrozenBatchNorm2d,
    ResNet,
)


class FusedResNet:
    """Images as ``Forms.pixels`` gives them to features (B, C, h, w) in channels-last memory.

    It reads the tensor called ``PIXELS`` and writes the one called ``FEATURES``; the others are
    called after the layers that write them, as torchvision names those.
    """

    PIXELS, FEATURES = 'pixels', 'features'

    def __init__(self, resnet: ResNet, *, forms: Forms) -> None:
        stem = ConvWeights.fold(resnet.conv1, resnet.bn1)
        self._stem = forms.conv(stem, wires=Wires(reads=self.PIXELS, writes='conv1'))
        self._pool = forms.pool
        stages = (resnet.layer1, resnet.layer2, resnet.layer3, resnet.layer4)
        blocks = [
            (f'layer{number}.{index}', block)
            for number, stage in enumerate(stages, start=1)
            for index, block in enumerate(stage)
        ]
        # A maximum over pixels changes no range, so what is pooled keeps its name.
        ends = ['conv1', *(name for name, _ in blocks[:-1]), self.FEATURES]
        self._blocks = [
            _FusedBlock(block, forms, name=name, reads=ends[index], writes=ends[index + 1])
            for index, (name, block) in enumerate(blocks)
        ]

    def __call__(self, images: Tensor) -> Tensor:
        x = self._pool(self._stem.relu(images))
        for block in self._blocks:
            x = block(x)
        return x


class _FusedBlock:
    """A residual block of either kind: convolutions, the last of which takes the shortcut."""

    def __init__(
        self, block: nn.Module, forms: Forms, *, name: str, reads: str, writes: str
    ) -> None:
        assert isinstance(block, (BasicBlock, Bottleneck))
        pairs = [(block.conv1, block.bn1), (block.conv2, block.bn2)]
        if isinstance(block, Bottleneck):
            pairs.append((block.conv3, block.bn3))
        folded = [ConvWeights.fold(conv, norm) for conv, norm in pairs]
        self._shortcut: ConvForm | None = None
        adds = reads
        if isinstance(block.downsample, nn.Sequential):
            conv, norm = block.downsample
            assert isinstance(conv, nn.Conv2d)
            assert isinstance(norm, FrozenBatchNorm2d)
            shortcut = ConvWeights.fold(conv, norm)
            # Both biases meet in the same sum, so the shortcut needs none of its own.
            folded[-1] = replace(folded[-1], bias=folded[-1].bias + shortcut.bias)
            adds = f'{name}.downsample'
            self._shortcut = forms.conv(shortcut, wires=Wires(reads=reads, writes=adds))
        ends = [reads, *(f'{name}.conv{i}' for i in range(1, len(folded))), writes]
        self._inner = [
            forms.conv(weights, wires=Wires(reads=ends[index], writes=ends[index + 1]))
            for index, weights in enumerate(folded[:-1])
        ]
        self._last = forms.conv(
            folded[-1], wires=Wires(reads=ends[-2], adds=adds, writes=ends[-1])
        )

    def __call__(self, x: Tensor) -> Tensor:
        y = x
        for conv in self._inner:
            y = conv.relu(y)
        shortcut = x if self._shortcut is None else self._shortcut.plain(x)
        return self._last.add_relu(y, shortcut)
