"""Fit ACT to demonstrations, from scratch.

No pretrained backbone is needed: the norms are ordinary batch norms over the pictures of all
cameras for most of the training, are then frozen while the rest goes on learning, and are written
with their statistics as the frozen norms that ACT has.

Shapes: ``N`` recorded instants, ``B`` batch, ``T`` chunk, ``A`` action size, ``H, W`` pixels.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sparkrt_ros.runtime.checkpoint.config import ActConfig, FeatureSpec, FeatureType
from sparkrt_ros.runtime.policies.act import ActModel
from sparkrt_ros.runtime.policies.resnet import FrozenBatchNorm2d
from sparkrt_ros.sim.arm import JOINT_NAMES
from sparkrt_ros.sim.demos import DemoSpec, Episode
from sparkrt_ros.sim.task import CAMERAS

logger = logging.getLogger(__name__)

STATE = 'observation.state'
ACTION = 'action'
IMAGES = tuple(f'observation.images.{camera}' for camera in CAMERAS)

Stats = dict[str, dict[str, Tensor]]


@dataclass(frozen=True, kw_only=True)
class TrainSpec:
    """The schedule ends after ``steps`` or ``budget_s``, whichever comes first."""

    steps: int = 12_000
    budget_s: float = 1200.0
    batch: int = 256
    rate: float = 5e-4
    weight_decay: float = 1e-4
    warmup_share: float = 0.03
    frozen_share: float = 0.25
    brightness: float = 0.15
    pixel_noise: float = 0.01
    report_every: int = 250
    seed: int = 0


def act_config(demos: DemoSpec, *, n_action_steps: int = 5, **changes: Any) -> ActConfig:
    """The policy's configuration: small, so that the file stays small and a CPU core serves it."""
    size = len(JOINT_NAMES)
    shape = (3, demos.height, demos.width)
    inputs = {key: FeatureSpec(key=key, type=FeatureType.VISUAL, shape=shape) for key in IMAGES}
    inputs[STATE] = FeatureSpec(key=STATE, type=FeatureType.STATE, shape=(size,))
    action = FeatureSpec(key=ACTION, type=FeatureType.ACTION, shape=(size,))
    fields: dict[str, Any] = {
        'chunk_size': 40,
        'n_action_steps': n_action_steps,
        'pretrained_backbone_weights': None,
        'dim_model': 128,
        'n_heads': 4,
        'dim_feedforward': 512,
        'n_encoder_layers': 4,
        'n_decoder_layers': 1,
        'use_vae': False,
        'dropout': 0.05,
        'optimizer_lr': TrainSpec.rate,
        'optimizer_lr_backbone': TrainSpec.rate,
    }
    return ActConfig(
        input_features=inputs, output_features={ACTION: action}, **{**fields, **changes}
    )


class Demonstrations:
    """All instants of all episodes on one device.

    images: by policy key (N, H, W, 3) uint8; states, actions: (N, A) float32; ``last`` (N,) is the
    index of the last instant of the same episode, after which its last action goes on.
    """

    def __init__(self, episodes: Sequence[Episode], device: torch.device) -> None:
        lengths = [len(episode.states) for episode in episodes]
        total = sum(lengths)
        self.images: dict[str, Tensor] = {}
        for key, camera in zip(IMAGES, CAMERAS, strict=True):
            shape = episodes[0].images[camera].shape[1:]
            pixels = torch.empty((total, *shape), dtype=torch.uint8, device=device)
            start = 0
            for episode, length in zip(episodes, lengths, strict=True):
                pixels[start : start + length] = torch.from_numpy(episode.images[camera])
                start += length
            self.images[key] = pixels
        self.states = torch.cat([torch.from_numpy(e.states) for e in episodes]).to(device)
        self.actions = torch.cat([torch.from_numpy(e.actions) for e in episodes]).to(device)
        ends = torch.cumsum(torch.tensor(lengths), 0) - 1
        self.last = torch.repeat_interleave(ends, torch.tensor(lengths)).to(device)

    def __len__(self) -> int:
        return len(self.states)

    def chunks(self, index: Tensor, rows: int) -> Tensor:
        """(B, T, A) actions from each instant of ``index`` (B,) on."""
        ahead = index[:, None] + torch.arange(rows, device=index.device)
        return self.actions[torch.minimum(ahead, self.last[index][:, None])]

    def stats(self) -> Stats:
        """Mean, standard deviation and range; images in [0, 1], by channel as (3, 1, 1)."""
        result: Stats = {}
        for key, pixels in self.images.items():
            sample = pixels[:: max(len(self) // 4000, 1)].float().flatten(0, 2) / 255
            result[key] = {k: v.reshape(3, 1, 1) for k, v in _describe(sample).items()}
        result[STATE] = _describe(self.states)
        result[ACTION] = _describe(self.actions)
        return result


def _describe(rows: Tensor) -> dict[str, Tensor]:
    return {
        'mean': rows.mean(0),
        'std': rows.std(0),
        'min': rows.amin(0),
        'max': rows.amax(0),
    }


class TrainableAct(ActModel):
    """ActModel with batch norms that learn, over one batch of all cameras' pictures."""

    def __init__(self, config: ActConfig) -> None:
        super().__init__(config)
        _swap_norms(self.backbone)

    def forward(self, *, images: Sequence[Tensor] = (), **inputs: Any) -> Tensor:
        maps = self.encoder_img_feat_input_proj(self.backbone(torch.cat(tuple(images))))
        return super().forward(images=maps.chunk(len(images)), **inputs)

    def _see(self, image: Tensor) -> tuple[Tensor, Tensor]:
        height, width = image.shape[2:]
        table: Tensor = getattr(self, f'positions_{height}x{width}')
        return image.flatten(2).permute(2, 0, 1), table

    def freeze_norms(self) -> None:
        """Let the norms use their running statistics from now on, as they will when serving."""
        for module in self.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.eval()

    def inference_weights(self) -> dict[str, Tensor]:
        """The state dict of the plain ``ActModel``."""
        return {
            name: tensor.detach().float().cpu()
            for name, tensor in self.state_dict().items()
            if not name.endswith('num_batches_tracked')
        }


def _swap_norms(module: nn.Module) -> None:
    for name, child in module.named_children():
        if isinstance(child, FrozenBatchNorm2d):
            setattr(module, name, nn.BatchNorm2d(child.weight.numel(), eps=child.eps))
        else:
            _swap_norms(child)


class Learner:
    """One training run; ``fit`` yields the weights of the plain model."""

    def __init__(
        self, data: Demonstrations, config: ActConfig, spec: TrainSpec, device: torch.device
    ) -> None:
        torch.manual_seed(spec.seed)
        self.data, self.config, self.spec, self.device = data, config, spec, device
        self.stats = {
            key: {name: value.to(device) for name, value in values.items()}
            for key, values in data.stats().items()
        }
        self.model = TrainableAct(config).to(device, memory_format=torch.channels_last)
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(),
            lr=spec.rate,
            weight_decay=spec.weight_decay,
            fused=device.type == 'cuda',
        )
        self._generator = torch.Generator(device=device).manual_seed(spec.seed)

    def fit(self) -> dict[str, Tensor]:
        """Train to the end of the schedule."""
        spec, started = self.spec, time.perf_counter()
        self.model.train()
        total = torch.zeros((), device=self.device)
        frozen = False
        for step in range(spec.steps):
            share = max(step / spec.steps, (time.perf_counter() - started) / spec.budget_s)
            if share >= 1.0:
                break
            if not frozen and share > 1 - spec.frozen_share:
                frozen = True
                self.model.freeze_norms()
            for group in self.optimizer.param_groups:
                group['lr'] = spec.rate * _schedule(share, spec.warmup_share)
            total += self._step()
            if (step + 1) % spec.report_every == 0:
                loss = float(total) / spec.report_every
                total.zero_()
                spent_s = time.perf_counter() - started
                logger.info(
                    'step %d  loss %.4f  %.0f s  frozen %s', step + 1, loss, spent_s, frozen
                )
        self.model.eval()
        return self.model.inference_weights()

    def _step(self) -> Tensor:
        index = torch.randint(
            len(self.data), (self.spec.batch,), generator=self._generator, device=self.device
        )
        images = [self._picture(key, index) for key in IMAGES]
        state = self._normal(STATE, self.data.states[index])
        target = self._normal(ACTION, self.data.chunks(index, self.config.chunk_size))
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == 'cuda'):
            predicted = self.model(images=images, state=state)
            loss = F.l1_loss(predicted.float(), target)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        return loss.detach()

    def _normal(self, key: str, value: Tensor) -> Tensor:
        stats = self.stats[key]
        return (value - stats['mean']) / (stats['std'] + 1e-8)

    def _picture(self, key: str, index: Tensor) -> Tensor:
        """(B, 3, H, W) normalised pictures with random light and sensor noise."""
        pixels = self.data.images[key][index].permute(0, 3, 1, 2).float() / 255
        size = (len(index), 1, 1, 1)
        gain = 1 + self.spec.brightness * (2 * torch.rand(size, device=self.device) - 1)
        noise = self.spec.pixel_noise * torch.randn_like(pixels)
        return self._normal(key, (pixels * gain + noise).clamp(0, 1))


def _schedule(share: float, warmup: float) -> float:
    """Linear rise, then half a cosine down to zero."""
    if share < warmup:
        return (share + 1e-3) / (warmup + 1e-3)
    return 0.5 * (1 + math.cos(math.pi * (share - warmup) / (1 - warmup)))


class BatchPredictor:
    """The trained weights in the plain ``ActModel``, for many observations at once."""

    def __init__(
        self, config: ActConfig, weights: Mapping[str, Tensor], stats: Stats, device: torch.device
    ) -> None:
        self._model = ActModel(config)
        self._model.load_state_dict(dict(weights))
        self._model.to(device).eval()
        self._stats = {k: {n: v.to(device) for n, v in s.items()} for k, s in stats.items()}
        self._device = device

    @torch.inference_mode()
    def __call__(self, images: Mapping[str, Any], states: Any) -> Any:
        """images: by camera (B, H, W, 3) uint8; states (B, S); returns (B, T, A) float32 numpy."""
        pictures = []
        for key, camera in zip(IMAGES, CAMERAS, strict=True):
            pixels = torch.from_numpy(images[camera]).to(self._device)
            pictures.append(self._normal(key, pixels.permute(0, 3, 1, 2).float() / 255))
        state = torch.as_tensor(states, dtype=torch.float32, device=self._device)
        chunk = self._model(images=pictures, state=self._normal(STATE, state))
        scaled = chunk * self._stats[ACTION]['std'] + self._stats[ACTION]['mean']
        return scaled.float().cpu().numpy()

    def _normal(self, key: str, value: Tensor) -> Tensor:
        return (value - self._stats[key]['mean']) / (self._stats[key]['std'] + 1e-8)
