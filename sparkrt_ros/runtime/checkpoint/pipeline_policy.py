"""Parsers of the processor steps that single kinds of policy have: text and relative actions.

Imports no torch.
"""

from __future__ import annotations

from sparkrt_ros.runtime.checkpoint.pipeline_entry import Entry
from sparkrt_ros.runtime.checkpoint.steps import (
    AbsoluteActionsStep,
    NewLineStep,
    RelativeActionsStep,
    StatePromptStep,
    TokenizerStep,
)

DEFAULT_MAX_STATE_DIM = 32
TASK_KEY = 'task'
_TOKENIZER_ARTIFACT = 'tokenizer_name'


def parse_new_line(entry: Entry) -> NewLineStep:
    """Raises ``CheckpointError`` for options."""
    entry.check()
    return NewLineStep()


def parse_state_prompt(entry: Entry) -> StatePromptStep:
    """Raises ``CheckpointError`` for options of another form."""
    entry.check('max_state_dim', 'task_key')
    _check_task_key(entry)
    size = entry.config.get('max_state_dim', DEFAULT_MAX_STATE_DIM)
    if type(size) is not int or size < 1:
        entry.refuse('max_state_dim', found=size, expected='a positive integer')
    return StatePromptStep(max_state_dim=size)


def parse_tokenizer(entry: Entry) -> TokenizerStep:
    """Raises ``CheckpointError`` for padding or truncation other than on the right, to a length.

    Tokens of a prompt shorter than the length are padded; the policy masks what is padded.
    """
    names = ('max_length', 'task_key', 'padding_side', 'padding', 'truncation', 'tokenizer_name')
    entry.check(*names, artifacts=(_TOKENIZER_ARTIFACT,))
    _check_task_key(entry)
    required = {'padding_side': 'right', 'padding': 'max_length', 'truncation': True}
    for option, value in required.items():
        if entry.config.get(option, value) != value:
            entry.refuse(option, found=entry.config[option], expected=repr(value))
    length = entry.config.get('max_length', 512)
    if type(length) is not int or length < 1:
        entry.refuse('max_length', found=length, expected='a positive integer')
    name = entry.config.get('tokenizer_name')
    if name is not None and not isinstance(name, str):
        entry.refuse('tokenizer_name', found=name, expected='a string')
    return TokenizerStep(
        max_length=length, tokenizer_name=name, folder=entry.artifacts.get(_TOKENIZER_ARTIFACT)
    )


def parse_relative_actions(entry: Entry) -> RelativeActionsStep:
    """Raises ``CheckpointError`` for options of another form."""
    entry.check('enabled', 'exclude_joints', 'action_names')
    names = entry.config.get('action_names')
    return RelativeActionsStep(
        enabled=_enabled(entry),
        exclude_joints=_texts(entry, 'exclude_joints', entry.config.get('exclude_joints') or []),
        action_names=None if names is None else _texts(entry, 'action_names', names),
    )


def parse_absolute_actions(entry: Entry) -> AbsoluteActionsStep:
    """Raises ``CheckpointError`` for options of another form."""
    entry.check('enabled')
    return AbsoluteActionsStep(enabled=_enabled(entry))


def _enabled(entry: Entry) -> bool:
    value = entry.config.get('enabled', False)
    if type(value) is not bool:
        entry.refuse('enabled', found=value, expected='true or false')
    return bool(value)


def _texts(entry: Entry, option: str, value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        entry.refuse(option, found=value, expected='a list of strings')
        return ()
    return tuple(value)


def _check_task_key(entry: Entry) -> None:
    if entry.config.get('task_key', TASK_KEY) != TASK_KEY:
        entry.refuse('task_key', found=entry.config['task_key'], expected=repr(TASK_KEY))
