"""What Pi0 and Pi0.5 share: pictures and text become keys and values, from which actions flow.

Two Gemma decoders with one attention: ``language`` reads pictures and text once, ``expert`` reads
noisy actions at every step and sees what the first one kept. All shapes are fixed by those of the
inputs, noise is an input, and nothing depends on the value of a tensor, so a whole prediction can
be recorded.
Shapes: ``B`` batch, ``T`` rows of a chunk, ``D`` max_action_dim, ``C`` cameras, ``Q`` tokens of
text, ``P`` tokens of the prefix (pictures, then text), ``S`` tokens of the expert, ``L`` layers,
``G`` heads of keys and values, ``h`` size of a head, ``N`` evaluations of the velocity.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from sparkrt_ros.runtime.checkpoint.pi_config import PiConfig
from sparkrt_ros.runtime.policies.flow_matching import FlowPlan, Velocity, integrate
from sparkrt_ros.runtime.policies.gemma import (
    MASKED,
    Decoder,
    Modulation,
    Rotation,
    rotary_frequencies,
    rotation_at,
)
from sparkrt_ros.runtime.policies.rtc import PreviousChunk, guidance_weights, guided
from sparkrt_ros.runtime.policies.siglip import SiglipVision, vision_dtype


class Prefix(NamedTuple):
    """What the expert sees of an observation.

    keys, values: (L, B, G, P, h), keys rotated. valid: (B, P) bool; others are never attended to.
    """

    keys: Tensor
    values: Tensor
    valid: Tensor


class Scene(NamedTuple):
    """A prefix with what the expert needs beside it, the same at every step of a prediction.

    rotation: of the expert's tokens. mask: (B, 1, 1 or S, P + S) float32. state: (B, W) or None.
    """

    prefix: Prefix
    rotation: Rotation
    mask: Tensor
    state: Tensor | None


class PiNetwork(nn.Module, ABC):
    """The network of one configuration, without weights until they are loaded.

    dtype: of the two decoders and the text embeddings. Pictures, norms and the layers around
        actions and time are float32 whatever it is, as in LeRobot.
    exact_text_scale: scale text embeddings by the exact square root of their width, as LeRobot up
        to 0.5 did, where later versions round it with the embeddings.
    """

    frequencies: Tensor

    def __init__(
        self, config: PiConfig, *, dtype: torch.dtype, exact_text_scale: bool = False
    ) -> None:
        super().__init__()
        sizes = config.sizes
        self.config = config
        self.vision = SiglipVision(sizes.vision)
        self.projector = nn.Linear(sizes.vision.width, sizes.language.width)
        self.embed_tokens = nn.Embedding(sizes.language.vocabulary, sizes.language.width)
        self.language = Decoder(sizes.language)
        self.expert = Decoder(sizes.expert, condition=self.condition_width(config))
        self.action_in_proj = nn.Linear(config.max_action_dim, sizes.expert.width)
        self.action_out_proj = nn.Linear(sizes.expert.width, config.max_action_dim)
        rounded = config.dtype == 'bfloat16'
        frequencies = rotary_frequencies(sizes.language.head_dim, rounded=rounded)
        self.register_buffer('frequencies', frequencies, persistent=False)
        scale = math.sqrt(sizes.language.width)
        if rounded and not exact_text_scale:
            scale = float(torch.tensor(scale, dtype=torch.bfloat16, device='cpu'))
        self.text_scale = scale
        self.use_dtype(dtype)

    @staticmethod
    @abstractmethod
    def condition_width(config: PiConfig) -> int:
        """Width of what modulates the expert's norms; 0 for plain norms."""

    @abstractmethod
    def moments(self, times: Sequence[float]) -> Tensor:
        """What depends on the times alone, computed ahead: a tensor with one row for each (N)."""

    @abstractmethod
    def expert_tokens(self, actions: Tensor, moment: Tensor, state: Tensor | None) -> Tensor:
        """Noisy actions (B, T, D) at one row of ``moments`` -> the expert's tokens (B, S, W)."""

    @abstractmethod
    def modulations(self, moment: Tensor) -> tuple[Modulation, ...] | None:
        """How the expert's norms are modulated at one row of ``moments``."""

    def use_dtype(self, dtype: torch.dtype) -> None:
        """Compute the two decoders in ``dtype``; on meta tensors and real ones alike."""
        for decoder in (self.language, self.expert):
            for name, parameter in decoder.named_parameters():
                if 'norm' not in name:
                    parameter.data = parameter.data.to(dtype)
        self.embed_tokens.weight.data = self.embed_tokens.weight.data.to(dtype)

    def encode(
        self,
        images: Sequence[Tensor],
        tokens: Tensor,
        counts: Tensor,
        *,
        image_mask: Tensor | None = None,
    ) -> Prefix:
        """Read an observation.

        images: one (B, 3, R, R) float32 in [-1, 1] per camera, in the order of the policy.
        tokens: (B', Q) integers, of which the first ``counts`` (B',) are text; B' is a multiple
            of B where several prompts go with one observation.
        image_mask: (B, C) bool, False for a camera that is not there; None: all are.
        """
        batch, text = tokens.shape
        pictures = torch.cat([self._see(image) for image in images], dim=1)
        copies = batch // pictures.shape[0]
        words = self.embed_tokens(tokens) * self.text_scale
        embedded = torch.cat((pictures.to(words.dtype).repeat(copies, 1, 1), words), dim=1)
        present = torch.arange(text, device=tokens.device) < counts.unsqueeze(1)
        seen = present.new_ones(batch, pictures.shape[1])
        if image_mask is not None:
            per_camera = pictures.shape[1] // len(images)
            seen = image_mask.repeat_interleave(per_camera, dim=1).repeat(copies, 1)
        valid = torch.cat((seen, present), dim=1)
        rotation = self._rotation(valid.cumsum(dim=1) - 1, self.language)
        keys, values = self.language.fill(embedded, rotation, _visible(valid))
        return Prefix(keys=keys, values=values, valid=valid)

    def scene(self, prefix: Prefix, state: Tensor | None = None) -> Scene:
        """Prepare the steps that follow; state: (B, max_state_dim) where the expert reads it."""
        token = self.state_token(state)
        if token is not None:
            token = token.repeat(prefix.valid.shape[0] // token.shape[0], 1)
        rows = self.config.chunk_size + (token is not None)
        places = torch.arange(rows, device=prefix.valid.device)
        positions = prefix.valid.sum(dim=1, keepdim=True) + places
        ahead = _visible(prefix.valid)
        among = self._among(rows, prefix.valid.device)
        batch = prefix.valid.shape[0]
        queries = among.shape[2]
        mask = torch.cat(
            (ahead.expand(-1, -1, queries, -1), among.expand(batch, -1, -1, -1)), dim=3
        )
        return Scene(
            prefix=prefix,
            rotation=self._rotation(positions, self.expert),
            mask=mask,
            state=token,
        )

    def state_token(self, state: Tensor | None) -> Tensor | None:
        """The state (B, max_state_dim) as a token (B, W) of the expert, if it reads one so."""
        assert state is None
        return None

    def _among(self, rows: int, device: torch.device) -> Tensor:
        """Which of its own tokens the expert sees: (1, 1, 1 or S, S) float32."""
        return torch.zeros(1, 1, 1, rows, device=device)

    def velocity(self, actions: Tensor, moment: Tensor, scene: Scene) -> Tensor:
        """Actions (B, T, D) float32 at one row of ``moments`` -> velocity (B, T, D) float32."""
        tokens = self.expert_tokens(actions, moment, scene.state).to(self.expert.dtype)
        out = self.expert.continue_from(
            tokens,
            scene.rotation,
            scene.mask,
            keys=scene.prefix.keys,
            values=scene.prefix.values,
            modulations=self.modulations(moment),
        )
        rows = out[:, -self.config.chunk_size :].to(self.action_out_proj.weight.dtype)
        velocity: Tensor = self.action_out_proj(rows)
        return velocity.float()

    def _see(self, image: Tensor) -> Tensor:
        """One camera (B, 3, R, R) -> its tokens (B, patches, W) float32."""
        tokens: Tensor = self.projector(self.vision(image.to(vision_dtype(self.vision))))
        return tokens

    def _rotation(self, positions: Tensor, decoder: Decoder) -> Rotation:
        return rotation_at(positions, self.frequencies, dtype=decoder.dtype)


def sample(
    network: Any,
    scene: Any,
    noise: Tensor,
    *,
    plan: FlowPlan,
    moments: Tensor | Sequence[Any],
    previous: PreviousChunk | None = None,
    max_guidance_weight: float = 10.0,
    cfg_beta: float | Tensor | None = None,
) -> Tensor:
    """Noise (B, T, D) float32 -> actions (B, T, D) float32.

    network, scene, moments: a ``PiNetwork`` or what serves in its place, with its own scene and
        one moment for each of ``plan.times``. previous: the chunk to continue.
    cfg_beta: a number or (B or 1, 1, 1). The scene then holds 2 B prefixes, conditioned ones
        first.
    """

    def flow(actions: Tensor, number: int) -> Tensor:
        if cfg_beta is None:
            alone: Tensor = network.velocity(actions, moments[number], scene)
            return alone
        both: Tensor = network.velocity(actions.repeat(2, 1, 1), moments[number], scene)
        conditioned, unconditioned = both.chunk(2)
        mixed: Tensor = unconditioned + cfg_beta * (conditioned - unconditioned)
        return mixed

    velocity: Velocity = flow
    if previous is not None:
        weights = guidance_weights(plan.times, max_weight=max_guidance_weight)
        velocity = guided(flow, previous, times=plan.times, weights=weights)
    return integrate(velocity, noise, plan)


def _visible(valid: Tensor) -> Tensor:
    """(B, P) bool -> what is added to logits, (B, 1, 1, P) float32."""
    zero = torch.zeros((), device=valid.device)
    return torch.where(valid, zero, zero + MASKED)[:, None, None, :]
