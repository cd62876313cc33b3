"""Pi0 and Pi0.5 for inference: packed weights, six kernels per layer of the expert, one region.

Takes the place of ``PiNetwork`` in ``sample``. What depends on the times of a plan alone is a
table. Shapes: see ``pi_network``; ``N`` evaluations of the velocity.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sparkrt_ros.runtime.kernels.pi_ops import Heads, PiOps, Stream, Turn, make_stream
from sparkrt_ros.runtime.policies.gemma import Decoder, DecoderLayer
from sparkrt_ros.runtime.policies.pi_fused_prefix import (
    DecoderWeights,
    FusedLanguage,
    FusedVision,
    grow_of,
)
from sparkrt_ros.runtime.policies.pi_network import PiNetwork, Prefix

VISION_COSINE = 0.9995
"""Of tokens of pictures, below which the vision tower stays in float32."""
_LARGE = ('vision', 'projector', 'embed_tokens', 'language', 'expert')


@dataclass(frozen=True, kw_only=True)
class Moment:
    """What the expert does at one evaluation: one row per norm, in the order in which they come.

    grow, shift, gate: (2 L + 1, W). before, after: (L, outputs), what the shift of a norm becomes
    in the product that follows it. embedding: (W,) where time is mixed into the actions. float32.
    """

    grow: Tensor
    shift: Tensor
    gate: Tensor
    before: Tensor
    after: Tensor
    embedding: Tensor


@dataclass(frozen=True, kw_only=True)
class FlowScene:
    """What stays the same at every step of a prediction, and the memory steps work in."""

    prefix: Prefix
    valid: Tensor
    turn: Turn
    state: Tensor | None
    stream: Stream


class FusedPi:
    """The network of ``source`` in ``dtype``, with copies of what it packs or casts.

    times: of the plan it will serve. ops: see ``pi_ops``. vision_dtype: of the vision tower.
    """

    def __init__(
        self,
        source: PiNetwork,
        *,
        times: Sequence[float],
        ops: PiOps,
        dtype: torch.dtype,
        vision_dtype: torch.dtype,
    ) -> None:
        sizes = source.config.sizes
        self.config, self.dtype = source.config, dtype
        self._ops, self._text_scale = ops, source.text_scale
        self._frequencies = source.frequencies
        self._heads = Heads(
            queries=sizes.expert.heads, keys=sizes.expert.kv_heads, size=sizes.expert.head_dim
        )
        self._state_first = source.config.model_type == 'pi0'
        self._small = _without(source, _LARGE)
        self._words = source.embed_tokens.weight.detach().to(dtype)
        self._vision = FusedVision(source.vision, source.projector, ops=ops, dtype=vision_dtype)
        self._language = FusedLanguage(source.language, self._heads, ops=ops, dtype=dtype)
        self._layers = [DecoderWeights.pack(layer, dtype) for layer in source.expert.layers]
        self._out = tuple(
            x.detach().float()
            for x in (source.action_out_proj.weight, source.action_out_proj.bias)
        )
        self.moments = _moments(source, self._layers, times)

    def see(self, images: Sequence[Tensor]) -> Tensor:
        """Pictures, (B, 3, R, R) per camera -> their tokens (B, C V, W) float32."""
        tokens = self._vision(torch.cat(tuple(images))).float()
        by_camera = tokens.view(len(images), -1, *tokens.shape[1:]).transpose(0, 1)
        return by_camera.flatten(1, 2)

    def read(
        self,
        pictures: Tensor,
        tokens: Tensor,
        counts: Tensor,
        *,
        cameras: int = 1,
        image_mask: Tensor | None = None,
    ) -> Prefix:
        """Tokens of pictures (B, C V, W) and text -> a prefix; see ``PiNetwork.encode``."""
        batch, text = tokens.shape
        copies = batch // pictures.shape[0]
        words = torch.nn.functional.embedding(tokens, self._words).float() * self._text_scale
        x = torch.cat((pictures.repeat(copies, 1, 1), words), dim=1)
        present = torch.arange(text, device=tokens.device) < counts.unsqueeze(1)
        seen = present.new_ones(batch, pictures.shape[1])
        if image_mask is not None:
            per_camera = pictures.shape[1] // cameras
            seen = image_mask.repeat_interleave(per_camera, dim=1).repeat(copies, 1)
        valid = torch.cat((seen, present), dim=1)
        turn = self._turn(valid.cumsum(dim=1) - 1)
        keys, values = self._language(x.flatten(0, 1), turn, valid.to(torch.int8))
        return Prefix(keys=keys, values=values, valid=valid)

    def encode(
        self,
        images: Sequence[Tensor],
        tokens: Tensor,
        counts: Tensor,
        *,
        image_mask: Tensor | None = None,
    ) -> Prefix:
        """See ``PiNetwork.encode``."""
        return self.read(
            self.see(images), tokens, counts, cameras=len(images), image_mask=image_mask
        )

    def scene(self, prefix: Prefix, state: Tensor | None = None) -> FlowScene:
        """See ``PiNetwork.scene``."""
        token = self._small.state_token(state)
        samples = prefix.valid.shape[0]
        if token is not None:
            token = token.repeat(samples // token.shape[0], 1)
        rows = self.config.chunk_size + (token is not None)
        places = torch.arange(rows, device=prefix.valid.device)
        stream = make_stream(
            samples=samples,
            tokens=rows,
            width=self.config.sizes.expert.width,
            dtype=self.dtype,
            device=prefix.valid.device,
        )
        return FlowScene(
            prefix=prefix,
            valid=prefix.valid.to(torch.int8),
            turn=self._turn(prefix.valid.sum(dim=1, keepdim=True) + places),
            state=token,
            stream=stream,
        )

    def velocity(self, actions: Tensor, moment: Moment, scene: FlowScene) -> Tensor:
        """See ``PiNetwork.velocity``."""
        ops, stream = self._ops, scene.stream
        tokens = self._small.expert_tokens(actions, moment.embedding, scene.state)
        ops.prepare(stream, tokens.flatten(0, 1), moment.grow[0])
        for number, layer in enumerate(self._layers):
            # Before the first layer of the next step lies the last of this one.
            following = self._layers[(number + 1) % len(self._layers)]
            queries, keys, values = ops.project(
                stream,
                layer.qkv,
                moment.before[number],
                scene.turn,
                self._heads,
                ahead=layer.out,
            )
            mixed = ops.attend(
                queries,
                keys,
                values,
                scene.prefix.keys[number],
                scene.prefix.values[number],
                scene.valid,
                state_first=self._state_first,
                ahead=layer.gate_up,
            )
            gates, grows = moment.gate[2 * number :], moment.grow[2 * number + 1 :]
            ops.add_attended(stream, mixed, layer.out, gates[0], grows[0], ahead=layer.down)
            hidden = ops.feed(stream, layer.gate_up, moment.after[number], ahead=following.qkv)
            ops.add_fed(stream, hidden, layer.down, gates[1], grows[1])
        return ops.velocity(
            stream, moment.grow[-1], moment.shift[-1], *self._out, tokens=self.config.chunk_size
        )

    def _turn(self, positions: Tensor) -> Turn:
        angles = positions.reshape(-1, 1).to(torch.float32) * self._frequencies
        return Turn(cos=angles.cos(), sin=angles.sin())


def choose_vision_dtype(
    source: PiNetwork, *, ops: PiOps, dtype: torch.dtype
) -> tuple[torch.dtype, str]:
    """Return the dtype of the vision tower: ``dtype`` where it sees what float32 sees.

    Judged by the tokens of a random picture, beside a sentence for the receipt.
    """
    side = source.config.image_resolution[0]
    random = torch.Generator().manual_seed(0)
    image = torch.rand(1, 3, side, side, generator=random).to(source.frequencies.device) * 2 - 1
    with torch.inference_mode():
        wanted = source._see(image).double().flatten()
        candidate = FusedVision(source.vision, source.projector, ops=ops, dtype=dtype)
        found = candidate(image).double().flatten()
        cosine = float(torch.nn.functional.cosine_similarity(found, wanted, dim=0))
    name = str(dtype).removeprefix('torch.')
    if cosine >= VISION_COSINE:
        return dtype, f'vision in {name}: cosine {cosine:.6f} to float32'
    return torch.float32, f'vision in float32: in {name} the cosine is {cosine:.6f}'


def _without(network: PiNetwork, names: Sequence[str]) -> PiNetwork:
    """The same network sharing its other parts, so that these can be freed."""
    other = copy.copy(network)
    other._modules = {key: part for key, part in network._modules.items() if key not in names}
    return other


def _moments(
    source: PiNetwork, layers: Sequence[DecoderWeights], times: Sequence[float]
) -> tuple[Moment, ...]:
    """The tables of a plan; norms without modulation have the same at all times."""
    embedded = source.moments(times)
    if embedded.ndim == 2:
        norms = torch.stack([grow_of(norm) for norm in _norms(source.expert)])
        fixed = _moment(norms, torch.zeros_like(norms), torch.ones_like(norms), layers)
        return tuple(
            Moment(**{**vars(fixed), 'embedding': row.float()}) for row in embedded.unbind()
        )
    return tuple(
        _moment(1.0 + table[:, 0], table[:, 1], table[:, 2], layers) for table in embedded
    )


def _moment(grow: Tensor, shift: Tensor, gate: Tensor, layers: Sequence[DecoderWeights]) -> Moment:
    shifts = shift[:-1].view(-1, 2, shift.shape[1])
    pairs = list(zip(layers, shifts.unbind(), strict=True))
    return Moment(
        grow=grow.contiguous(),
        shift=shift.contiguous(),
        gate=gate.contiguous(),
        before=torch.stack([layer.qkv.float() @ shift[0] for layer, shift in pairs]),
        after=torch.stack([layer.gate_up.float() @ shift[1] for layer, shift in pairs]),
        embedding=grow[0],
    )


def _norms(decoder: Decoder) -> list[torch.nn.Module]:
    norms: list[torch.nn.Module] = []
    for layer in decoder.layers:
        assert isinstance(layer, DecoderLayer)
        norms += [layer.input_layernorm, layer.post_attention_layernorm]
    return [*norms, decoder.norm]
