"""ResNet feature extractor with frozen batch normalisation.

The architecture of "Deep Residual Learning for Image Recognition" (arXiv:1512.03385) with the
stride of a bottleneck on its 3x3 convolution, as torchvision has it; parameter names equal
torchvision's, so its weights load unchanged. Shapes: ``B`` batch, ``C`` channels, ``H, W`` pixels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from sparkrt_ros.runtime.errors import ConfigError

_FIRST_WIDTH = 64


class FrozenBatchNorm2d(nn.Module):
    """``y = x * scale + shift`` with ``scale = weight / sqrt(running_var + eps)``.

    Nothing in it is trained. ``scale`` and ``shift`` follow the four loaded statistics: they are
    computed anew each time a state dict is loaded.
    """

    weight: Tensor
    bias: Tensor
    running_mean: Tensor
    running_var: Tensor
    scale: Tensor
    shift: Tensor

    def __init__(self, channels: int, *, eps: float = 1e-5) -> None:
        super().__init__()
        self.eps = eps
        self.register_buffer('weight', torch.ones(channels))
        self.register_buffer('bias', torch.zeros(channels))
        self.register_buffer('running_mean', torch.zeros(channels))
        self.register_buffer('running_var', torch.ones(channels))
        self.register_buffer('scale', torch.ones(channels, 1, 1), persistent=False)
        self.register_buffer('shift', torch.zeros(channels, 1, 1), persistent=False)
        self.register_load_state_dict_post_hook(_refresh)  # type: ignore[no-untyped-call]
        self.refresh()

    def refresh(self) -> None:
        """Recompute scale and shift from the four statistics, once these have memory."""
        if self.weight.is_meta:
            return
        with torch.no_grad():
            scale = self.weight * (self.running_var + self.eps).rsqrt()
            shift = self.bias - self.running_mean * scale
            self.scale = scale.reshape(-1, 1, 1)
            self.shift = shift.reshape(-1, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        # The product is this function's own, so that adding in place touches nobody's data.
        return torch.mul(x, self.scale).add_(self.shift)


def _refresh(module: nn.Module, _incompatible_keys: Any) -> None:
    if isinstance(module, FrozenBatchNorm2d):
        module.refresh()


def _conv(
    inputs: int, outputs: int, kernel: int, *, stride: int = 1, dilation: int = 1
) -> nn.Conv2d:
    padding = dilation * (kernel // 2)
    return nn.Conv2d(
        inputs, outputs, kernel, stride=stride, padding=padding, dilation=dilation, bias=False
    )


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut; the block of resnet18 and resnet34."""

    expansion = 1

    def __init__(self, inputs: int, width: int, *, stride: int, dilation: int) -> None:
        super().__init__()
        if dilation != 1:
            raise ConfigError(
                'replace_final_stride_with_dilation',
                found='true with a resnet of basic blocks (resnet18, resnet34)',
                expected='false, or a backbone of bottleneck blocks (resnet50 and deeper)',
                remedy='such a policy cannot have been trained; check config.json',
            )
        self.conv1 = _conv(inputs, width, 3, stride=stride)
        self.bn1 = FrozenBatchNorm2d(width)
        self.conv2 = _conv(width, width, 3)
        self.bn2 = FrozenBatchNorm2d(width)
        self.downsample: nn.Module | None = None

    def forward(self, x: Tensor) -> Tensor:
        shortcut: Tensor = x if self.downsample is None else self.downsample(x)
        out: Tensor = self.bn1(self.conv1(x)).relu_()
        out = self.bn2(self.conv2(out))
        return out.add_(shortcut).relu_()


class Bottleneck(nn.Module):
    """1x1, 3x3, 1x1 convolutions and a shortcut; the block of resnet50 and deeper."""

    expansion = 4

    def __init__(self, inputs: int, width: int, *, stride: int, dilation: int) -> None:
        super().__init__()
        outputs = width * self.expansion
        self.conv1 = _conv(inputs, width, 1)
        self.bn1 = FrozenBatchNorm2d(width)
        self.conv2 = _conv(width, width, 3, stride=stride, dilation=dilation)
        self.bn2 = FrozenBatchNorm2d(width)
        self.conv3 = _conv(width, outputs, 1)
        self.bn3 = FrozenBatchNorm2d(outputs)
        self.downsample: nn.Module | None = None

    def forward(self, x: Tensor) -> Tensor:
        shortcut: Tensor = x if self.downsample is None else self.downsample(x)
        out: Tensor = self.bn1(self.conv1(x)).relu_()
        out = self.bn2(self.conv2(out)).relu_()
        out = self.bn3(self.conv3(out))
        return out.add_(shortcut).relu_()


@dataclass(frozen=True, kw_only=True)
class _Design:
    block: type[BasicBlock] | type[Bottleneck]
    depths: tuple[int, int, int, int]


_DESIGNS = {
    'resnet18': _Design(block=BasicBlock, depths=(2, 2, 2, 2)),
    'resnet34': _Design(block=BasicBlock, depths=(3, 4, 6, 3)),
    'resnet50': _Design(block=Bottleneck, depths=(3, 4, 6, 3)),
    'resnet101': _Design(block=Bottleneck, depths=(3, 4, 23, 3)),
    'resnet152': _Design(block=Bottleneck, depths=(3, 8, 36, 3)),
}


class ResNet(nn.Module):
    """Images (B, 3, H, W) to the feature map of the last stage (B, out_channels, h, w).

    ``h = ceil(H / 32)`` (``ceil(H / 16)`` when the last stage is dilated instead of strided).
    Raises ConfigError for an unknown name, or for dilation with basic blocks.
    """

    def __init__(self, name: str, *, dilate_last_stage: bool = False) -> None:
        super().__init__()
        design = _DESIGNS.get(name)
        if design is None:
            raise ConfigError(
                'vision_backbone', found=repr(name), expected=f'one of {", ".join(_DESIGNS)}'
            )
        self.conv1 = nn.Conv2d(3, _FIRST_WIDTH, 7, stride=2, padding=3, bias=False)
        self.bn1 = FrozenBatchNorm2d(_FIRST_WIDTH)
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        block, depths = design.block, design.depths
        last = 2 if dilate_last_stage else 1
        inputs = _FIRST_WIDTH
        self.layer1 = _stage(block, inputs, 64, depths[0], stride=1)
        inputs = 64 * block.expansion
        self.layer2 = _stage(block, inputs, 128, depths[1], stride=2)
        inputs = 128 * block.expansion
        self.layer3 = _stage(block, inputs, 256, depths[2], stride=2)
        inputs = 256 * block.expansion
        self.layer4 = _stage(block, inputs, 512, depths[3], stride=3 - last, dilation=last)
        self.out_channels = 512 * block.expansion
        self.stage_strides = (2, 2, 2, 2, 3 - last)
        self._initialise()

    def forward(self, images: Tensor) -> Tensor:
        x = self.bn1(self.conv1(images)).relu_()
        x = self.maxpool(x)
        features: Tensor = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return features

    def feature_size(self, height: int, width: int) -> tuple[int, int]:
        """Rows and columns of the feature map for an image of the given size."""
        for stride in self.stage_strides:
            height, width = -(-height // stride), -(-width // stride)
        return height, width

    def _initialise(self) -> None:
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode='fan_out', nonlinearity='relu')


def _stage(
    block: type[BasicBlock] | type[Bottleneck],
    inputs: int,
    width: int,
    depth: int,
    *,
    stride: int,
    dilation: int = 1,
) -> nn.Sequential:
    """One stage; its first block carries the stride, the others the dilation.

    A stride replaced by dilation leaves the first block undilated: the convolution after the
    missing stride is the first that sees the denser map.
    """
    outputs = width * block.expansion
    first = block(inputs, width, stride=stride, dilation=1)
    if stride != 1 or inputs != outputs:
        first.downsample = nn.Sequential(
            _conv(inputs, outputs, 1, stride=stride), FrozenBatchNorm2d(outputs)
        )
    rest = [block(outputs, width, stride=1, dilation=dilation) for _ in range(depth - 1)]
    return nn.Sequential(first, *rest)
