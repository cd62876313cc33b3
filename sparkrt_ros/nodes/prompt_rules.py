"""What an instruction must be, whoever it comes from. Pure, but for what the policy says."""

from __future__ import annotations

import unicodedata
from typing import TYPE_CHECKING

from sparkrt_ros.runtime.errors import ConfigError

if TYPE_CHECKING:
    from sparkrt_ros.nodes.loaded_policy import LoadedPolicy

WHERE = 'prompt'
# Far more than any policy reads; keeps a tokenizer from being handed a book.
MOST_CHARACTERS = 4096
NO_PROMPT = (
    'no prompt, and this policy acts by one: set the parameter prompt, or publish it on ~/prompt'
)
# What the middleware puts in place of bytes that are not UTF-8.
_REPLACED = '\ufffd'


def check_prompt(prompt: str) -> None:
    """Raise ConfigError for text that is no instruction for any policy."""
    if len(prompt) > MOST_CHARACTERS:
        raise _refused(f'{len(prompt)} characters', f'at most {MOST_CHARACTERS}')
    if _REPLACED in prompt or any(unicodedata.category(one) == 'Cs' for one in prompt):
        raise _refused(f'{prompt[:80]!r}, which was not UTF-8', 'UTF-8 text')
    controls = sorted({one for one in prompt if unicodedata.category(one) == 'Cc'})
    if controls:
        names = ', '.join(f'U+{ord(one):04X}' for one in controls)
        raise _refused(f'control characters ({names}) in {prompt[:80]!r}', 'one line of text')


def check_prompt_fits(prompt: str, loaded: LoadedPolicy) -> None:
    """Raise ConfigError for an instruction that a policy could not act by.

    A policy that reads none takes any.
    """
    check_prompt(prompt)
    if not loaded.capabilities.requires_task:
        return
    if not prompt.strip():
        raise _refused('an empty prompt', 'an instruction, since this policy acts by one')
    loaded.policy.check_task(prompt)


def _refused(found: str, expected: str) -> ConfigError:
    return ConfigError(WHERE, found=found, expected=expected)
