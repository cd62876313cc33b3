"""Pi0 and Pi0.5 behind the contract of a session.

Shapes: ``B`` batch, ``T`` rows of a chunk, ``A`` action size, ``D`` max_action_dim, ``N`` rows of
tokens: B, or 2 B under classifier-free guidance.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from sparkrt_ros.runtime.backends.base import Region
from sparkrt_ros.runtime.checkpoint.features import STATE_KEY
from sparkrt_ros.runtime.checkpoint.pi_config import PiConfig
from sparkrt_ros.runtime.errors import BackendError, ConfigError, ObservationError
from sparkrt_ros.runtime.host_inputs import (
    CONTINUED_KEY,
    COUNTS_KEY,
    DELAY_KEY,
    GUIDANCE_KEY,
    HORIZON_KEY,
    TOKENS_KEY,
)
from sparkrt_ros.runtime.kernels.pi_choice import choose_pi_ops
from sparkrt_ros.runtime.policies.adapter import PolicyContext
from sparkrt_ros.runtime.policies.flow_matching import make_plan
from sparkrt_ros.runtime.policies.pi_fused import FusedPi, Moment, choose_vision_dtype
from sparkrt_ros.runtime.policies.pi_network import PiNetwork, Prefix, sample
from sparkrt_ros.runtime.policies.pi_weights import load_network, recast
from sparkrt_ros.runtime.policies.rtc import PreviousChunk, prefix_weights
from sparkrt_ros.runtime.precision.tiers import Tier
from sparkrt_ros.runtime.processors.images import prepare_image
from sparkrt_ros.runtime.types import Capabilities
from sparkrt_ros.runtime.vla_config import VlaConfig

_log = logging.getLogger(__name__)

PREFIX, DENOISE = 'prefix', 'denoise'
DTYPES = ('float32', 'bfloat16')


class PiAdapter:
    """Two capturable regions with nothing but tensors between them.

    ``prefix``: tokens (N, Q), counts (N,), images (B, 3, H, W) in [0, 1] -> keys and values,
    each (L, N, G, P, h), and which of the P tokens are there (N, P).
    ``denoise``: noise (B, T, D), keys, values, valid, [state], [how much guidance counts],
    [the chunk to continue, delay, horizon] -> (B, T, A).

    A camera that is not there is left out instead of filled in and masked: it comes last, is
    attended to by nothing, and moves no position, so the result is the same.
    Raises CheckpointError when the weights do not cover the network exactly, and ConfigError for
    choices that name no camera of the policy.
    """

    def __init__(
        self,
        config: PiConfig,
        weights: Mapping[str, Tensor],
        *,
        device: torch.device,
        weights_file: str = 'model.safetensors',
        vla: VlaConfig | None = None,
    ) -> None:
        self._config = config
        self._vla = VlaConfig() if vla is None else vla
        self._capabilities = pi_capabilities(config, self._vla)
        self._plan = make_plan(
            steps=self._capabilities.num_inference_steps,
            schedule=self._vla.schedule,
            solver=self._vla.solver,
        )
        self._reads_state = config.model_type == 'pi0'
        network = load_network(
            config,
            weights,
            device=device,
            exact_text_scale=self._vla.compat == '0.4',
            where=weights_file,
        )
        self._device = device
        self._network: PiNetwork | FusedPi
        self._moments: Tensor | tuple[Moment, ...]
        self._use(network)
        self._notes: tuple[str, ...] = ()
        absent = (*config.empty_camera_keys, *self._vla.missing_cameras)
        if absent:
            _log.warning('cameras that are not there, and masked: %s', ', '.join(absent))

    @property
    def capabilities(self) -> Capabilities:
        return self._capabilities

    @property
    def notes(self) -> tuple[str, ...]:
        """See PolicyAdapter."""
        return self._notes

    @property
    def network(self) -> PiNetwork:
        """The network as written, in plain PyTorch. Raises BackendError in a fused form."""
        if isinstance(self._network, FusedPi):
            raise BackendError(
                self._config.model_type,
                found='a fused policy',
                expected='the policy as written',
                remedy='fuse the policy as it was loaded',
            )
        return self._network

    @property
    def served(self) -> PiNetwork | FusedPi:
        """What computes, in whatever form."""
        return self._network

    def fused(self, tier: Tier, *, plain_operators: bool = False) -> PiAdapter:
        """See PolicyAdapter. Own kernels for bf16 on CUDA; else LeRobot's mixture of dtypes."""
        if tier.dtype not in DTYPES:
            raise BackendError(
                f'{self._config.model_type} in {tier.name}',
                found=tier.dtype,
                expected=f'one of {", ".join(DTYPES)}: activations leave the range of others',
            )
        other = copy.copy(self)
        network, dtype = self.network, getattr(torch, tier.dtype)
        if plain_operators or dtype is torch.float32 or self._device.type != 'cuda':
            other._use(recast(network, dtype=dtype))
            reason = 'a compiler fuses them' if plain_operators else f'{dtype} on {self._device}'
            other._notes = (f'plain operators: there is no fused form for this ({reason})',)
            return other
        other._fuse(network, dtype)
        return other

    def _fuse(self, network: PiNetwork, dtype: torch.dtype) -> None:
        sizes = self._config.sizes
        tokens = self._config.chunk_size + self._reads_state
        pictures = len(self._capabilities.camera_keys) * sizes.vision.patches
        choice = choose_pi_ops(
            sizes.expert,
            device=self._device,
            dtype=dtype,
            tokens=tokens,
            prefix=pictures + self._config.tokenizer_max_length,
        )
        vision_dtype, note = choose_vision_dtype(network, ops=choice.ops, dtype=dtype)
        with torch.inference_mode():
            fused = FusedPi(
                network,
                times=self._plan.times,
                ops=choice.ops,
                dtype=dtype,
                vision_dtype=vision_dtype,
            )
        self._network, self._moments = fused, fused.moments
        self._notes = (*choice.notes, note)

    def regions(self) -> tuple[Region, ...]:
        """See PolicyAdapter."""
        return (
            Region(name=PREFIX, fn=self._prefix, capturable=True),
            Region(name=DENOISE, fn=self._denoise, capturable=True),
        )

    def predict_chunk(
        self, context: PolicyContext, batch: Mapping[str, Tensor], *, noise: Tensor | None
    ) -> Tensor:
        """See PolicyAdapter; noise: (B, T, D) float32."""
        needed = [TOKENS_KEY, COUNTS_KEY, *self._capabilities.camera_keys]
        later = [STATE_KEY] if self._reads_state else []
        if self._vla.rtc is not None:
            later += [CONTINUED_KEY, DELAY_KEY, HORIZON_KEY]
        missing = [key for key in (*needed, *later) if key not in batch]
        if missing:
            raise ObservationError(
                'preprocessed observation',
                found=', '.join(batch) or 'nothing',
                expected=f'also {", ".join(missing)}',
                remedy='check the steps of policy_preprocessor.json',
            )
        if noise is None:
            image = batch[self._capabilities.camera_keys[0]]
            shape = (image.shape[0], *self._capabilities.noise_shape)
            noise = torch.randn(shape, device=image.device)
        prefix = context.regions[PREFIX](*(batch[key] for key in needed))
        guidance = [] if self._vla.cfg_beta is None else [self._beta(batch, noise)]
        state = [batch[key] for key in later[: self._reads_state]]
        continued = [batch[key] for key in later[self._reads_state :]]
        chunk = context.regions[DENOISE](noise, *prefix, *state, *guidance, *continued)
        return chunk if isinstance(chunk, Tensor) else chunk[0]

    def _beta(self, batch: Mapping[str, Tensor], noise: Tensor) -> Tensor:
        """(B,), or (1,) for a batch that does not say."""
        if GUIDANCE_KEY in batch:
            return batch[GUIDANCE_KEY]
        return torch.full((1,), self._vla.cfg_beta or 0.0, device=noise.device)

    def _use(self, network: PiNetwork) -> None:
        self._network = network
        with torch.inference_mode():
            self._moments = network.moments(self._plan.times)

    def _prefix(self, tokens: Tensor, counts: Tensor, *images: Tensor) -> tuple[Tensor, ...]:
        side = self._config.image_resolution[0]
        squares = [prepare_image(image, side, compat=self._vla.compat) for image in images]
        return self._network.encode(squares, tokens, counts)

    def _denoise(
        self, noise: Tensor, keys: Tensor, values: Tensor, valid: Tensor, *rest: Tensor
    ) -> Tensor:
        config, rtc = self._config, self._vla.rtc
        state, continued = (rest[0], rest[1:]) if self._reads_state else (None, rest)
        if state is not None:
            state = F.pad(state, (0, config.max_state_dim - state.shape[-1]))
        beta = None
        if self._vla.cfg_beta is not None:
            beta, continued = continued[0].view(-1, 1, 1), continued[1:]
        previous = None
        if rtc is not None:
            rows, delay, horizon = continued
            previous = PreviousChunk(
                actions=F.pad(rows, (0, config.max_action_dim - rows.shape[-1])),
                weights=prefix_weights(
                    delay, horizon, rows=config.chunk_size, schedule=rtc.schedule
                ),
            )
        actions = sample(
            self._network,
            self._network.scene(Prefix(keys, values, valid), state),
            noise,
            plan=self._plan,
            moments=self._moments,
            previous=previous,
            max_guidance_weight=0.0 if rtc is None else rtc.max_guidance_weight,
            cfg_beta=beta,
        )
        return actions[..., : self._capabilities.action_size]


def pi_capabilities(config: PiConfig, vla: VlaConfig) -> Capabilities:
    """What a policy with this configuration needs and yields, under a user's choices.

    Raises ConfigError for a camera it does not have, and where none would be left.
    """
    cameras = [key for key in config.image_features if key not in config.empty_camera_keys]
    for name, keys in (('missing_cameras', vla.missing_cameras), ('image_sizes', vla.image_sizes)):
        unknown = [key for key in keys if key not in cameras]
        if unknown:
            raise ConfigError(
                f'vla.{name}', found=', '.join(unknown), expected=f'among {", ".join(cameras)}'
            )
    present = [key for key in cameras if key not in vla.missing_cameras]
    if not present:
        raise ConfigError(
            'vla.missing_cameras', found='every camera', expected='at least one camera left'
        )
    sizes = {key: config.image_features[key].shape[1:] for key in present} | {
        key: size for key, size in vla.image_sizes.items() if key in present
    }
    state = config.robot_state_feature
    return Capabilities(
        model_type=config.model_type,
        image_shapes={key: (3, sizes[key][0], sizes[key][1]) for key in present},
        state_size=0 if state is None else state.shape[0],
        environment_state_size=0,
        action_size=config.action_feature.shape[0],
        chunk_size=config.chunk_size,
        n_action_steps=config.n_action_steps,
        requires_task=True,
        is_iterative=True,
        num_inference_steps=vla.num_steps or config.num_inference_steps,
        noise_shape=(config.chunk_size, config.max_action_dim),
        supports_rtc=vla.rtc is not None,
    )
