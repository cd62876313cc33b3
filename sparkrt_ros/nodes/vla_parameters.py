"""Parameters of the policy node that only policies with an instruction have (Pi0.5, Pi0)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sparkrt_ros.nodes.parameter_spec import ParameterSpec, Value
from sparkrt_ros.runtime.vla_config import (
    COMPATIBILITIES,
    PROMPT_MODES,
    RTC_SCHEDULES,
    SCHEDULES,
    SOLVERS,
    RtcConfig,
)

# Guidance of this strength is the conditioned prompt alone, which costs half as much without it.
NO_GUIDANCE = 1.0
NO_SEED = -1
IMAGE_SIZES = ('checkpoint', 'contract')

VLA_PARAMETERS: tuple[ParameterSpec, ...] = (
    ParameterSpec(
        name='num_steps',
        default=0,
        description='Denoising steps of policies whose actions flow from noise (Pi0, Pi0.5); 0: '
        'what the checkpoint says.',
        kind='swap',
        bounds=(0, 1000),
    ),
    ParameterSpec(
        name='prompt',
        default='',
        description='Instruction for policies that read one; the topic ~/prompt sets it too. The '
        'next inference reads it, and begins at once.',
        kind='live',
    ),
    ParameterSpec(
        name='vla.schedule',
        default='uniform',
        description='How denoising steps are spread over time: evenly, as in training, or with '
        'the last ones the smaller, the higher the power.',
        kind='swap',
        choices=tuple(SCHEDULES),
    ),
    ParameterSpec(
        name='vla.solver',
        default='euler',
        description='How a step is made. midpoint asks the network twice per step.',
        kind='swap',
        choices=SOLVERS,
    ),
    ParameterSpec(
        name='vla.tokenizer',
        default='',
        description='tokenizer.json, a SentencePiece model, or a folder with one of them; empty: '
        'the one in the checkpoint.',
        kind='swap',
    ),
    ParameterSpec(
        name='vla.compat',
        default='0.6',
        description='Version of LeRobot the policy was trained with, as far as pictures and '
        'prompts were prepared differently.',
        kind='swap',
        choices=COMPATIBILITIES,
    ),
    ParameterSpec(
        name='vla.missing_cameras',
        default=(),
        element=str,
        description='Cameras of the policy that this robot does not have, by their keys '
        '(observation.images.wrist); they are masked.',
        kind='swap',
    ),
    ParameterSpec(
        name='vla.image_sizes',
        default='checkpoint',
        description='Size of the pictures that reach the policy, which scales them itself: as in '
        'its config.json, or what the robot contract makes of them (crop, resize).',
        kind='swap',
        choices=IMAGE_SIZES,
    ),
    ParameterSpec(
        name='vla.cfg_beta',
        default=NO_GUIDANCE,
        description='Strength of classifier-free guidance between the two prompts below; 1: off. '
        'On and off need another policy, other changes take effect with the next inference.',
        kind='swap',
        bounds=(0.0, 100.0),
    ),
    ParameterSpec(
        name='vla.cfg_conditioned',
        default='{task}',
        description='Prompt that guidance leads to; {task} stands for the instruction.',
        kind='swap',
    ),
    ParameterSpec(
        name='vla.cfg_unconditioned',
        default='',
        description='Prompt that guidance leads away from.',
        kind='swap',
    ),
    ParameterSpec(
        name='vla.seed',
        default=NO_SEED,
        description='Of the noise that chunks start from, together with the number of the chunk; '
        '-1: different in every run.',
        kind='live',
        bounds=(NO_SEED, 2**31 - 1),
    ),
    ParameterSpec(
        name='vla.state_prompt.mode',
        default='exact',
        description='exact: prompts are padded to the first of several lengths, all of them '
        'prepared when the node configures. fixed: all prompts have one length.',
        kind='swap',
        choices=PROMPT_MODES,
    ),
    ParameterSpec(
        name='vla.state_prompt.lengths',
        default=(),
        element=int,
        description='These lengths, in tokens, in mode exact with the longest of the policy; '
        'empty: every 32, in mode fixed the longest.',
        kind='swap',
        bounds=(1, 100000),
    ),
    ParameterSpec(
        name='vla.rtc.schedule',
        default=RtcConfig().schedule,
        description='How the pull towards the chunk that plays falls off, in chunking.mode rtc, '
        'behind the rows that will have been played.',
        kind='swap',
        choices=RTC_SCHEDULES,
    ),
    ParameterSpec(
        name='vla.rtc.max_guidance_weight',
        default=RtcConfig().max_guidance_weight,
        description='Upper limit of that pull at one denoising step.',
        kind='swap',
        bounds=(0.001, 1000.0),
    ),
)


def vla_choices(values: Mapping[str, Value]) -> dict[str, Any]:
    """The fields of ``VlaConfig`` that parameters choose; what was not chosen is left out.

    The seed is not among them: it is handed over with each inference.
    """
    chosen: dict[str, Any] = {
        'num_steps': values['num_steps'] or None,
        'schedule': values['vla.schedule'],
        'solver': values['vla.solver'],
        'tokenizer': values['vla.tokenizer'] or None,
        'compat': values['vla.compat'],
        'missing_cameras': values['vla.missing_cameras'],
        'state_prompt': {
            'mode': values['vla.state_prompt.mode'],
            'lengths': values['vla.state_prompt.lengths'],
        },
    }
    if values['vla.cfg_beta'] != NO_GUIDANCE:
        chosen['cfg_beta'] = values['vla.cfg_beta']
        chosen['cfg_conditioned'] = values['vla.cfg_conditioned']
        chosen['cfg_unconditioned'] = values['vla.cfg_unconditioned']
    rtc = {name: values[f'vla.rtc.{name}'] for name in ('schedule', 'max_guidance_weight')}
    if RtcConfig(**rtc) != RtcConfig():  # type: ignore[arg-type]
        chosen['rtc'] = rtc
    return chosen
