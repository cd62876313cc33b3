"""The tensors of a Pi0 or Pi0.5 file: their names, the known spellings of these, their shapes.

Names are those LeRobot 0.6.1 saves, without ``model.``. Everything is checked from the header of
the weight file, before anything is read. Imports no torch.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from sparkrt_ros.runtime.checkpoint.pi_config import PiConfig
from sparkrt_ros.runtime.checkpoint.pi_sizes import PATCH_SIZE, GemmaSizes, VisionSizes
from sparkrt_ros.runtime.checkpoint.safetensors_file import TensorInfo
from sparkrt_ros.runtime.errors import CheckpointError

Shapes = dict[str, tuple[int, ...]]

_TOWER = 'paligemma_with_expert.paligemma.model.vision_tower.'
VISION_PREFIX = f'{_TOWER}vision_model.'
PROJECTOR_PREFIX = 'paligemma_with_expert.paligemma.model.multi_modal_projector.linear.'
LANGUAGE_PREFIX = 'paligemma_with_expert.paligemma.model.language_model.'
EXPERT_PREFIX = 'paligemma_with_expert.gemma_expert.model.'
EMBEDDING = f'{LANGUAGE_PREFIX}embed_tokens.weight'
LANGUAGE_HEAD = 'paligemma_with_expert.paligemma.lm_head.weight'
EXPERT_HEAD = 'paligemma_with_expert.gemma_expert.lm_head.weight'

UNREAD_WEIGHTS = (LANGUAGE_HEAD, EXPERT_HEAD)
"""In the file, and never read: the policy writes no text."""

_PLAIN_NORM = re.compile(
    re.escape(EXPERT_PREFIX)
    + r'(layers\.\d+\.(input_layernorm|post_attention_layernorm)|norm)\.weight'
)
_SHOWN = 5
_REMEDY = 'the weights do not belong to this config.json: copy both from one save'


def arrange_names(
    config: PiConfig, names: Mapping[str, str]
) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return LeRobot's name -> name in the file, and what is worth a warning.

    The repairs are those LeRobot makes when it loads, and no others: other spellings of the time
    network, weights of another kind of policy left in a Pi0.5 file, and text embeddings that are
    only there as the language head. The level ``vision_model``, which newer versions of the
    library that LeRobot builds on leave out, is put back.
    Raises ``CheckpointError`` where two tensors get one name.
    """
    adaptive = config.model_type == 'pi05'
    arranged: dict[str, str] = {}
    dropped = []
    for name, stored in names.items():
        if adaptive and (name.startswith('state_proj.') or _PLAIN_NORM.fullmatch(name)):
            dropped.append(name)
            continue
        new = _respelled(name, adaptive=adaptive)
        if new in arranged:
            raise CheckpointError(
                new,
                found=f'two tensors of that name: {arranged[new]} and {stored}',
                expected='one',
            )
        arranged[new] = stored
    notes = []
    if dropped:
        notes.append(f'{_listed(dropped)} not used: a pi05 policy has no such weights')
    if EMBEDDING not in arranged and LANGUAGE_HEAD in arranged:
        arranged[EMBEDDING] = arranged[LANGUAGE_HEAD]
        notes.append('no text embeddings of their own: the language head holds them')
    return arranged, tuple(notes)


def _respelled(name: str, *, adaptive: bool) -> str:
    for part in ('in', 'out'):
        short, long = f'time_mlp_{part}.', f'action_time_mlp_{part}.'
        given, wanted = (long, short) if adaptive else (short, long)
        if name.startswith(given):
            return wanted + name.removeprefix(given)
    if name.startswith(_TOWER) and not name.startswith(VISION_PREFIX):
        return VISION_PREFIX + name.removeprefix(_TOWER)
    return name


def required_shapes(config: PiConfig) -> Shapes:
    """Return name -> shape of every tensor that inference reads."""
    sizes = config.sizes
    width, actions = sizes.expert.width, config.max_action_dim
    adaptive = config.model_type == 'pi05'
    shapes = {
        **_prefixed(VISION_PREFIX, _vision(sizes.vision)),
        **_affine(PROJECTOR_PREFIX.removesuffix('.'), sizes.language.width, sizes.vision.width),
        **_prefixed(LANGUAGE_PREFIX, _decoder(sizes.language, condition=0)),
        EMBEDDING: (sizes.language.vocabulary, sizes.language.width),
        **_prefixed(EXPERT_PREFIX, _decoder(sizes.expert, condition=width if adaptive else 0)),
        **_affine('action_in_proj', width, actions),
        **_affine('action_out_proj', actions, width),
    }
    if adaptive:
        shapes |= _affine('time_mlp_in', width, width) | _affine('time_mlp_out', width, width)
    else:
        shapes |= _affine('state_proj', width, config.max_state_dim)
        shapes |= _affine('action_time_mlp_in', width, 2 * width)
        shapes |= _affine('action_time_mlp_out', width, width)
    return shapes


def check_shapes(config: PiConfig, tensors: Mapping[str, TensorInfo], *, file: Path) -> None:
    """Raise ``CheckpointError`` unless ``tensors`` are exactly those of ``config``.

    tensors: by LeRobot's name. The two language heads may be there or not.
    """
    required = required_shapes(config)
    missing = sorted(required.keys() - tensors.keys())
    unexpected = sorted(tensors.keys() - required.keys() - set(UNREAD_WEIGHTS))
    for what, names in (('missing', missing), ('unexpected', unexpected)):
        if names:
            raise CheckpointError(
                str(file),
                found=f'{len(names)} {what} weights: {_listed(names)}',
                expected=f'exactly the {len(required)} weights of the configured network',
                remedy=_REMEDY,
            )
    for name, shape in required.items():
        if tensors[name].shape != shape:
            raise CheckpointError(
                f'{file}: {name}',
                found=f'shape {tensors[name].shape}',
                expected=f'shape {shape}, which config.json implies',
                remedy=_REMEDY,
            )


def _listed(names: list[str]) -> str:
    return ', '.join(names[:_SHOWN]) + (', ...' if len(names) > _SHOWN else '')


def _affine(name: str, outputs: int, *inputs: int) -> Shapes:
    return {f'{name}.weight': (outputs, *inputs), f'{name}.bias': (outputs,)}


def _prefixed(prefix: str, shapes: Shapes) -> Shapes:
    return {f'{prefix}{name}': shape for name, shape in shapes.items()}


def _vision(sizes: VisionSizes) -> Shapes:
    width = sizes.width
    shapes = _affine('embeddings.patch_embedding', width, 3, PATCH_SIZE, PATCH_SIZE)
    shapes['embeddings.position_embedding.weight'] = (sizes.patches, width)
    for number in range(sizes.depth):
        at = f'encoder.layers.{number}'
        for norm in ('layer_norm1', 'layer_norm2'):
            shapes |= _affine(f'{at}.{norm}', width)
        for projection in ('q_proj', 'k_proj', 'v_proj', 'out_proj'):
            shapes |= _affine(f'{at}.self_attn.{projection}', width, width)
        shapes |= _affine(f'{at}.mlp.fc1', sizes.mlp_width, width)
        shapes |= _affine(f'{at}.mlp.fc2', width, sizes.mlp_width)
    return shapes | _affine('post_layernorm', width)


def _decoder(sizes: GemmaSizes, *, condition: int) -> Shapes:
    """condition: width of what modulates the norms; 0 for norms with a weight of their own."""
    width, mlp = sizes.width, sizes.mlp_width
    queries, keys = sizes.heads * sizes.head_dim, sizes.kv_heads * sizes.head_dim
    shapes: Shapes = {}
    for number in range(sizes.depth):
        at = f'layers.{number}'
        for norm in ('input_layernorm', 'post_attention_layernorm'):
            shapes |= _norm(f'{at}.{norm}', width, condition=condition)
        shapes |= {
            f'{at}.self_attn.q_proj.weight': (queries, width),
            f'{at}.self_attn.k_proj.weight': (keys, width),
            f'{at}.self_attn.v_proj.weight': (keys, width),
            f'{at}.self_attn.o_proj.weight': (width, queries),
            f'{at}.mlp.gate_proj.weight': (mlp, width),
            f'{at}.mlp.up_proj.weight': (mlp, width),
            f'{at}.mlp.down_proj.weight': (width, mlp),
        }
    return shapes | _norm('norm', width, condition=condition)


def _norm(name: str, width: int, *, condition: int) -> Shapes:
    if condition:
        return _affine(f'{name}.dense', 3 * width, condition)
    return {f'{name}.weight': (width,)}
