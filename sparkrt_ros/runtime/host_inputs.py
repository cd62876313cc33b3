"""What a prediction reads beside cameras and vectors: noise, instruction, the chunk it follows.

Shapes: ``T`` rows of a chunk, ``A`` action size, ``D`` width of the noise, ``Q`` tokens.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from sparkrt_ros.runtime.errors import ConfigError, ObservationError
from sparkrt_ros.runtime.processors.prompt import Instruction
from sparkrt_ros.runtime.types import Capabilities, FloatArray

NOISE_KEY = 'noise'
TOKENS_KEY = 'observation.language.tokens'
COUNTS_KEY = 'observation.language.counts'
CONTINUED_KEY = 'continued.actions'
DELAY_KEY = 'continued.delay'
HORIZON_KEY = 'continued.horizon'
GUIDANCE_KEY = 'guidance.beta'
"""Keys of a preprocessed batch: noise (B, T, D); tokens (N, Q) and how many of them are text (N,),
where N is a multiple of B; the chunk to continue (B, T, A), its delay and horizon (B,); how
much guidance counts (B,)."""

ToModelSpace = Callable[..., Tensor]


@dataclass(frozen=True, kw_only=True)
class Continuation:
    """The chunk that is being played, for one that shall go on from it without a seam.

    actions: (T', A) float32 in policy units, row 0 due when the observation was made; at least
        one row. A chunk that ends early is continued by its last row.
    delay: rows that will have been played before the new chunk arrives: what was consumed during
        earlier inferences, not what these were thought to take.
    horizon: rows to be drawn towards it; None: what the configuration says.
    """

    actions: FloatArray
    delay: int
    horizon: int | None = None


@dataclass(frozen=True, kw_only=True)
class Extras:
    """The values of one prediction. length: of the tokens, to prepare for it; else what fits."""

    task: str | None = None
    state: FloatArray | None = None
    noise: Tensor | None = None
    continuation: Continuation | None = None
    length: int | None = None


class HostInputs:
    """Brings the extra inputs of one policy into host memory of its own, ready to be copied.

    Policies that take none have no tensors here, so nothing changes for them.
    horizon: of continuations; 0 where no chunk continues another.
    to_model_space: policy units -> normalised actions, for the chunk to continue.
    seed: of the noise; None: of the system's randomness.
    cfg_beta: how much classifier-free guidance counts, from the next prediction on; None where
        there is none.
    """

    def __init__(
        self,
        needs: Capabilities,
        *,
        device: torch.device,
        instruction: Instruction | None = None,
        horizon: int = 0,
        to_model_space: ToModelSpace | None = None,
        seed: int | None = None,
        cfg_beta: float | None = None,
    ) -> None:
        self._needs = needs
        self._cfg_beta = cfg_beta
        self._pinned = device.type == 'cuda'
        self._device = device
        self._instruction = instruction
        self._horizon = horizon
        self._to_model_space = to_model_space
        self._random = torch.Generator()
        if seed is None:
            self._random.seed()
        else:
            self._random.manual_seed(seed)
        self._staging: dict[tuple[str, int], Tensor] = {}

    @property
    def lengths(self) -> tuple[int | None, ...]:
        """Every length of tokens to prepare for; one None where there are no tokens."""
        return (None,) if self._instruction is None else self._instruction.lengths

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys of what ``stage`` returns, in its order."""
        keys: list[str] = []
        if self._needs.noise_shape:
            keys.append(NOISE_KEY)
        if self._instruction is not None:
            keys += [TOKENS_KEY, COUNTS_KEY]
        if self._cfg_beta is not None:
            keys.append(GUIDANCE_KEY)
        if self._horizon:
            keys += [CONTINUED_KEY, DELAY_KEY, HORIZON_KEY]
        return tuple(keys)

    def guide(self, cfg_beta: float) -> None:
        """Change how much guidance counts. Raises ConfigError where there is none."""
        if self._cfg_beta is None or not math.isfinite(cfg_beta):
            raise ConfigError(
                'vla.cfg_beta',
                found=f'{cfg_beta}, where it was {self._cfg_beta}',
                expected='a finite number, for a policy that was loaded with guidance',
                remedy='set vla.cfg_beta before the policy is loaded',
            )
        self._cfg_beta = cfg_beta

    def stage(self, extras: Extras) -> tuple[Tensor, ...]:
        """Copy the values into host memory; the same tensors for the same length of tokens.

        The caller sees to it that nothing reads the previous values any more. Raises
        ObservationError for an instruction or a continuation that does not fit, ConfigError for
        noise of another shape.
        """
        values: dict[str, Tensor] = {}
        if self._needs.noise_shape:
            values[NOISE_KEY] = self._noise(extras.noise)
        if self._instruction is not None:
            tokens, counts = self._instruction.encode(
                extras.task or '', extras.state, length=extras.length
            )
            values[TOKENS_KEY] = torch.from_numpy(tokens)
            values[COUNTS_KEY] = torch.from_numpy(counts)
        if self._cfg_beta is not None:
            values[GUIDANCE_KEY] = torch.tensor([self._cfg_beta], dtype=torch.float32)
        if self._horizon:
            values |= self._continued(extras.continuation)
        elif extras.continuation is not None:
            raise ConfigError(
                'vla.rtc',
                found='off',
                expected='on, for a chunk that continues another',
                remedy='set vla.rtc, if this policy can do that',
            )
        return tuple(self._stored(key, value) for key, value in values.items())

    def common_length(self, several: Sequence[Extras]) -> int | None:
        """Return the length of tokens that suits all of these; None where there are no tokens."""
        if self._instruction is None:
            return None
        encoded = [self._instruction.encode(one.task or '', one.state)[0] for one in several]
        return max(int(tokens.shape[1]) for tokens in encoded)

    def pack(self, extras: Extras) -> dict[str, Tensor]:
        """What ``stage`` gives, on the device and in memory of its own."""
        staged = self.stage(extras)
        return self.unpack(*(value.to(self._device) for value in staged))

    def unpack(self, *staged: Tensor) -> dict[str, Tensor]:
        """What ``stage`` gives, once on the device, by key; a pure function."""
        # On a CPU the tensors are not ours to hand out: the next observation overwrites them.
        copied = (value.clone() if value.device.type == 'cpu' else value for value in staged)
        return dict(zip(self.keys, copied, strict=True))

    def finish(self, batch: dict[str, Tensor], *, anchor: Tensor | None) -> dict[str, Tensor]:
        """Bring the chunk to continue into the space of the network; a pure function."""
        if CONTINUED_KEY not in batch or self._to_model_space is None:
            return batch
        continued = self._to_model_space(batch[CONTINUED_KEY], anchor=anchor)
        return {**batch, CONTINUED_KEY: continued}

    def seeded_noise(self, seed: int) -> Tensor | None:
        """Noise (1, T, D) that only depends on ``seed``; None where the policy takes none."""
        if not self._needs.noise_shape:
            return None
        random = torch.Generator().manual_seed(seed)
        return torch.randn((1, *self._needs.noise_shape), generator=random)

    def _noise(self, given: Tensor | None) -> Tensor:
        shape = (1, *self._needs.noise_shape)
        if given is None:
            return torch.randn(shape, generator=self._random)
        if tuple(given.shape) not in (shape, shape[1:]):
            raise ConfigError(
                'noise', found=f'shape {tuple(given.shape)}', expected=f'shape {shape}'
            )
        return given.detach().to('cpu', torch.float32).reshape(shape)

    def _continued(self, continuation: Continuation | None) -> dict[str, Tensor]:
        needs = self._needs
        rows = np.zeros((needs.chunk_size, needs.action_size), dtype=np.float32)
        delay = horizon = 0
        if continuation is not None:
            given = _checked(continuation, size=needs.action_size)[: needs.chunk_size]
            rows[: len(given)] = given
            rows[len(given) :] = given[-1]
            delay = continuation.delay
            horizon = self._horizon if continuation.horizon is None else continuation.horizon
        return {
            CONTINUED_KEY: torch.from_numpy(rows).unsqueeze(0),
            DELAY_KEY: torch.tensor([delay]),
            HORIZON_KEY: torch.tensor([horizon]),
        }

    def _stored(self, key: str, value: Tensor) -> Tensor:
        place = (key, value.shape[-1])
        staging = self._staging.get(place)
        if staging is None:
            staging = torch.empty(value.shape, dtype=value.dtype, pin_memory=self._pinned)
            self._staging[place] = staging
        staging.copy_(value)
        return staging


def join_rows(key: str, parts: Sequence[Tensor]) -> Tensor:
    """Put the values of several predictions together along the batch.

    Each brings the same rows of tokens; those of one prompt come together, then those of the next.
    """
    if key in (TOKENS_KEY, COUNTS_KEY):
        return torch.stack(tuple(parts), dim=1).flatten(0, 1)
    return torch.cat(tuple(parts))


def _checked(continuation: Continuation, *, size: int) -> FloatArray:
    actions = np.asarray(continuation.actions, dtype=np.float32)
    if actions.ndim != 2 or not len(actions) or actions.shape[1] != size:
        raise ObservationError(
            'continuation', found=f'actions of shape {actions.shape}', expected=f'(rows, {size})'
        )
    if not np.isfinite(actions).all() or continuation.delay < 0:
        raise ObservationError(
            'continuation',
            found=f'delay {continuation.delay}, or actions that are not finite',
            expected='finite actions and a delay of at least 0 rows',
        )
    return actions
