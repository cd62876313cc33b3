"""Do the steps of text and of relative actions fit each other and the policy? Imports no torch."""

from __future__ import annotations

from collections.abc import Sequence

from sparkrt_ros.runtime.checkpoint.features import STATE_KEY, PolicyConfig
from sparkrt_ros.runtime.checkpoint.steps import (
    AbsoluteActionsStep,
    NewLineStep,
    NormalizeStep,
    PipelineSpec,
    RelativeActionsStep,
    RenameStep,
    StatePromptStep,
    Step,
    TokenizerStep,
    UnnormalizeStep,
)
from sparkrt_ros.runtime.errors import CheckpointError

_SAVE_AGAIN = 'save the policy again with its processors'


def check_policy_steps(
    config: PolicyConfig, preprocessor: PipelineSpec, postprocessor: PipelineSpec
) -> list[str]:
    """Return warnings; raise ``CheckpointError`` where the steps cannot do what is needed."""
    _check_text(config, preprocessor)
    warnings = _check_relative(config, preprocessor, postprocessor)
    if getattr(config, 'rtc_config', None) is not None:
        warnings.append('config.json: rtc_config is not used: the runtime options decide')
    return warnings


def _check_text(config: PolicyConfig, pipeline: PipelineSpec) -> None:
    tokenizers = _places(pipeline.steps, TokenizerStep)
    before = [*_places(pipeline.steps, NewLineStep), *_places(pipeline.steps, StatePromptStep)]
    expected = 1 if config.reads_instruction else 0
    if len(tokenizers) != expected or (before and not tokenizers):
        raise CheckpointError(
            str(pipeline.file),
            found=f'{len(tokenizers)} steps {TokenizerStep.registry_name}',
            expected=f'{expected} in a {config.model_type} policy',
            remedy=_SAVE_AGAIN,
        )
    if not tokenizers:
        return
    late = [place for place in before if place > tokenizers[0]]
    if late:
        raise CheckpointError(
            f'{pipeline.file}: step {late[0]}',
            found=f'{pipeline.steps[late[0]].registry_name} after the tokenizer',
            expected='the prompt complete before it is cut into tokens',
        )
    for place in _places(pipeline.steps, RenameStep):
        renames = pipeline.steps[place]
        assert isinstance(renames, RenameStep)
        touched = {*renames.rename_map, *renames.rename_map.values()}
        if place > min(tokenizers + before) and STATE_KEY in touched:
            raise CheckpointError(
                f'{pipeline.file}: step {place}',
                found=f'{STATE_KEY} renamed after the prompt was made',
                expected='renaming first',
            )


def _check_relative(
    config: PolicyConfig, preprocessor: PipelineSpec, postprocessor: PipelineSpec
) -> list[str]:
    relative = [step for step in preprocessor.steps if isinstance(step, RelativeActionsStep)]
    absolute = [step for step in postprocessor.steps if isinstance(step, AbsoluteActionsStep)]
    for found, pipeline in ((relative, preprocessor), (absolute, postprocessor)):
        if len(found) > 1:
            raise CheckpointError(
                str(pipeline.file),
                found=f'{len(found)} steps {found[0].registry_name}',
                expected='at most one',
            )
    wanted = any(step.enabled for step in relative)
    if wanted != any(step.enabled for step in absolute):
        raise CheckpointError(
            f'{preprocessor.file} and {postprocessor.file.name}',
            found='relative actions in one of them only',
            expected='both the step that remembers the state and the one that adds it',
            remedy=_SAVE_AGAIN,
        )
    if not wanted:
        return []
    _check_anchor(config, preprocessor, postprocessor)
    says = getattr(config, 'use_relative_actions', False)
    if says:
        return []
    return [
        f'{preprocessor.file.name}: actions are relative, though config.json does not say so: the '
        'file of steps decides'
    ]


def _check_anchor(
    config: PolicyConfig, preprocessor: PipelineSpec, postprocessor: PipelineSpec
) -> None:
    """The state is remembered raw and added last; it covers what it is added to."""
    orders = (
        (preprocessor, RelativeActionsStep, NormalizeStep),
        (postprocessor, UnnormalizeStep, AbsoluteActionsStep),
    )
    for pipeline, first, second in orders:
        ahead, behind = _places(pipeline.steps, first), _places(pipeline.steps, second)
        if ahead and behind and min(behind) < max(ahead):
            raise CheckpointError(
                str(pipeline.file),
                found=f'{second.registry_name} before {first.registry_name}',
                expected=f'{first.registry_name} first: relative actions are in dataset units',
            )
    state, actions = config.robot_state_feature, config.action_feature.shape[0]
    if state is None or state.shape[0] < actions:
        raise CheckpointError(
            f'{preprocessor.file}: {RelativeActionsStep.registry_name}',
            found=f'a state of {0 if state is None else state.shape[0]} for {actions} actions',
            expected='a state with a value for every action, in the same order',
        )


def _places(steps: Sequence[Step], kind: type[Step]) -> list[int]:
    return [place for place, step in enumerate(steps) if isinstance(step, kind)]
