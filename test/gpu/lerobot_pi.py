"""A real LeRobot's Pi0 and Pi0.5 with given weights, of any size, on any device."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from sparkrt_ros.runtime.checkpoint.pi_config import PiConfig
from sparkrt_ros.runtime.checkpoint.pi_tensors import (
    EMBEDDING,
    EXPERT_HEAD,
    LANGUAGE_HEAD,
    VISION_PREFIX,
)

HAS_LEROBOT = find_spec('lerobot') is not None and find_spec('transformers') is not None


def adapt_to_newer_transformers() -> None:
    """LeRobot 0.6.1 hands on an argument that transformers above 5.5 no longer takes.

    The argument was not used any more either: the mask of a policy is four-dimensional, and
    such a mask is handed back as it is.
    """
    from lerobot.policies import pi_gemma

    original = pi_gemma.create_causal_mask
    if 'cache_position' in inspect.signature(original).parameters:
        return

    @functools.wraps(original)
    def without_cache_position(*args: Any, cache_position: Any = None, **named: Any) -> Any:
        return original(*args, **named)

    pi_gemma.create_causal_mask = without_cache_position


class LeRobotPi:
    """LeRobot's network in its own mixture of dtypes, with the weights of ``config``.

    weights: by LeRobot's names, without the language heads.
    """

    def __init__(
        self, config: PiConfig, weights: Mapping[str, Tensor], *, device: torch.device
    ) -> None:
        adapt_to_newer_transformers()
        self._config = config
        module, network = self._module()
        with torch.device(device), self._sized(module):
            self._model = getattr(module, network)(self._their_config()).eval()
        self._load(weights)

    def _module(self) -> tuple[Any, str]:
        if self._config.model_type == 'pi05':
            from lerobot.policies.pi05 import modeling_pi05

            return modeling_pi05, 'PI05Pytorch'
        from lerobot.policies.pi0 import modeling_pi0

        return modeling_pi0, 'PI0Pytorch'

    def _their_config(self) -> Any:
        from lerobot.configs.types import FeatureType, PolicyFeature
        from lerobot.policies.pi0.configuration_pi0 import PI0Config
        from lerobot.policies.pi05.configuration_pi05 import PI05Config

        def features(ours: Mapping[str, Any]) -> dict[str, Any]:
            return {
                key: PolicyFeature(type=FeatureType(spec.type.value), shape=spec.shape)
                for key, spec in ours.items()
            }

        kind = {'pi05': PI05Config, 'pi0': PI0Config}[self._config.model_type]
        return kind(
            input_features=features(self._config.input_features),
            output_features=features(self._config.output_features),
            device='cpu',
            dtype=self._config.dtype,
            chunk_size=self._config.chunk_size,
            n_action_steps=self._config.n_action_steps,
            num_inference_steps=self._config.num_inference_steps,
            image_resolution=self._config.image_resolution,
        )

    def _sized(self, module: Any) -> Any:
        """Build the sizes of ``config``, which need not be among those LeRobot knows."""
        sizes = self._config.sizes
        prefix, expert = module.PaliGemmaForConditionalGenerationWithPiGemma, None
        expert = module.PiGemmaForCausalLM

        def variant(name: str) -> Any:
            ours = sizes.language if name == 'gemma_2b' else sizes.expert
            return module.GemmaConfig(
                width=ours.width,
                depth=ours.depth,
                mlp_dim=ours.mlp_width,
                num_heads=ours.heads,
                num_kv_heads=ours.kv_heads,
                head_dim=ours.head_dim,
            )

        def sized_prefix(config: Any) -> Any:
            config.vision_config.hidden_size = sizes.vision.width
            config.vision_config.num_hidden_layers = sizes.vision.depth
            config.vision_config.intermediate_size = sizes.vision.mlp_width
            config.vision_config.num_attention_heads = sizes.vision.heads
            config.vision_config.projection_dim = sizes.language.width
            config.text_config.vocab_size = sizes.language.vocabulary
            return prefix(config=config)

        def sized_expert(config: Any) -> Any:
            config.vocab_size = sizes.expert.vocabulary
            return expert(config=config)

        return mock.patch.multiple(
            module,
            get_gemma_config=variant,
            PaliGemmaForConditionalGenerationWithPiGemma=sized_prefix,
            PiGemmaForCausalLM=sized_expert,
        )

    def _load(self, weights: Mapping[str, Tensor]) -> None:
        """Copy every weight in place; the heads, which inference never reads, stay as they are."""
        own = self._model.state_dict()
        renamed = {
            name if name in own else name.replace(VISION_PREFIX, VISION_PREFIX[:-13]): value
            for name, value in weights.items()
        }
        assert own.keys() - renamed.keys() == {LANGUAGE_HEAD, EXPERT_HEAD}
        assert renamed.keys() - own.keys() == set()
        assert EMBEDDING in renamed
        for name, value in renamed.items():
            own[name].copy_(value)

    @torch.no_grad()
    def predict(
        self,
        images: list[Tensor],
        masks: list[Tensor],
        tokens: Tensor,
        counts: Tensor,
        *,
        noise: Tensor,
        state: Tensor | None = None,
    ) -> Tensor:
        """The chunk (B, T, D) in float32; images in [-1, 1], masks (B,) each."""
        shown = torch.arange(tokens.shape[1], device=tokens.device) < counts[:, None]
        state_input = [] if state is None else [state]
        chunk: Tensor = self._model.sample_actions(
            images, masks, tokens, shown, *state_input, noise=noise
        )
        return chunk
