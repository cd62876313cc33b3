"""From an instruction and a state to the tokens a policy reads, as its processor file says.

Runs on the host for every prediction, since a prompt may hold the state. Texts and tokens are
exactly those of LeRobot 0.6.1.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from sparkrt_ros.runtime.checkpoint.features import STATE_KEY
from sparkrt_ros.runtime.checkpoint.load import CheckpointDescription
from sparkrt_ros.runtime.checkpoint.steps import (
    NewLineStep,
    NormalizeStep,
    PipelineSpec,
    StatePromptStep,
    Step,
    TokenizerStep,
)
from sparkrt_ros.runtime.checkpoint.tokenizer_file import (
    TOKENIZER_FOLDER,
    find_tokenizer,
    tokenizer_places,
    tokenizer_step,
)
from sparkrt_ros.runtime.errors import CheckpointError, ConfigError, ObservationError
from sparkrt_ros.runtime.processors.scaling import FeatureScaler
from sparkrt_ros.runtime.processors.tokenizer import Tokenizer, load_tokenizer
from sparkrt_ros.runtime.types import FloatArray
from sparkrt_ros.runtime.vla_config import VlaConfig

_log = logging.getLogger(__name__)

STATE_BINS = 256
PROMPTS_KEPT = 8
Tokens = npt.NDArray[np.int64]


def discretize(state: FloatArray) -> npt.NDArray[np.int64]:
    """Return the bin of every value among 256 equal ones over [-1, 1].

    Nothing is clipped: below -1 is bin -1, from 0.9921875 on is bin 255.
    """
    edges = np.linspace(-1, 1, STATE_BINS + 1)[:-1]
    bins: npt.NDArray[np.int64] = np.digitize(state, bins=edges) - 1
    return bins


def state_prompt(task: str, state: FloatArray) -> str:
    """Return the prompt of Pi0.5 for a state that is already scaled."""
    cleaned = task.strip().replace('_', ' ').replace('\n', ' ')
    values = ' '.join(map(str, discretize(state)))
    return f'Task: {cleaned}, State: {values};\nAction: '


def end_with_new_line(task: str) -> str:
    """Return the prompt of Pi0."""
    return task if task.endswith('\n') else f'{task}\n'


class PromptEncoder:
    """Makes the tokens of one policy. Remembers the last prompts, which rarely change.

    state_size: values of the state, which may be part of the prompt.
    padded_state: write the state padded with zeros to its full size, as LeRobot 0.4 did.
    """

    def __init__(
        self,
        pipeline: PipelineSpec,
        tokenizer: Tokenizer,
        *,
        state_size: int = 0,
        padded_state: bool = False,
    ) -> None:
        self.tokenizer = tokenizer
        self._state_size = state_size
        self._steps = _text_steps(pipeline)
        self._padded_state = padded_state
        step = tokenizer_step(pipeline)
        assert step is not None
        self.longest = step.max_length
        self._scaler = _state_scaler(pipeline, self._steps)
        self._known: dict[str, Tokens] = {}
        self._cut_before = False

    def prompt(self, task: str, state: FloatArray | None) -> str:
        """Return the text; state: (S,) float32 in the units of the dataset."""
        text = task
        for step in self._steps:
            if isinstance(step, NewLineStep):
                text = end_with_new_line(text)
            elif isinstance(step, StatePromptStep):
                text = state_prompt(text, self._scaled(state, step))
        return text

    def encode(self, task: str, state: FloatArray | None) -> Tokens:
        """Return at most ``longest`` tokens; a longer prompt loses its end, with a warning."""
        text = self.prompt(task, state)
        known = self._known.get(text)
        if known is not None:
            return known
        whole = self.tokenizer.encode(text)
        if len(whole) > self.longest:
            self._warn_once(task, len(whole))
        kept = self.tokenizer.cut(whole, self.longest)
        if len(self._known) >= PROMPTS_KEPT:
            self._known.clear()
        tokens = self._known[text] = np.asarray(kept, dtype=np.int64)
        return tokens

    def count(self, task: str) -> int:
        """Return the tokens a prompt with this instruction takes at least, whatever the state.

        Remembers nothing, so any thread may ask. Every value of the state counts with one digit.
        """
        text = task
        for step in self._steps:
            if isinstance(step, NewLineStep):
                text = end_with_new_line(text)
            elif isinstance(step, StatePromptStep):
                size = step.max_state_dim if self._padded_state else self._state_size
                text = state_prompt(text, np.full(size, -1.0, dtype=np.float32))
        return len(self.tokenizer.encode(text))

    def _warn_once(self, task: str, count: int) -> None:
        if not self._cut_before:
            _log.warning(
                'the prompt for %r takes %d tokens, of which the policy reads %d: shorten it',
                task,
                count,
                self.longest,
            )
        self._cut_before = True

    def _scaled(self, state: FloatArray | None, step: StatePromptStep) -> FloatArray:
        if state is None:
            raise ObservationError(
                STATE_KEY, found='nothing', expected='the state, which is part of the prompt'
            )
        values = state
        if self._scaler is not None:
            values = self._scaler.normalize(torch.from_numpy(state)).numpy()
        if self._padded_state and values.size < step.max_state_dim:
            values = np.pad(values, (0, step.max_state_dim - values.size))
        return values


class Instruction:
    """The tokens of one prediction: one row, or two where two prompts are compared.

    templates: of the prompts, in which ``{task}`` stands for the instruction.
    lengths: to which tokens are padded, rising; see StatePromptConfig.
    """

    def __init__(
        self,
        encoder: PromptEncoder,
        *,
        lengths: tuple[int, ...],
        templates: tuple[str, ...] = ('{task}',),
    ) -> None:
        self._encoder = encoder
        self._templates = templates
        self.lengths = lengths

    @property
    def rows(self) -> int:
        return len(self._templates)

    def check(self, task: str) -> None:
        """Raise ConfigError for an instruction that would lose its end, or fits no length.

        Any thread may ask.
        """
        limit = min(self.lengths[-1], self._encoder.longest)
        for template in self._templates:
            needed = self._encoder.count(template.replace('{task}', task))
            if needed > limit:
                raise ConfigError(
                    'prompt',
                    found=f'a prompt of {needed} tokens: {task[:80]!r}',
                    expected=f'at most {limit}',
                    remedy='shorten the instruction',
                )

    def encode(
        self, task: str, state: FloatArray | None, *, length: int | None = None
    ) -> tuple[Tokens, Tokens]:
        """Return tokens (rows, length) and how many of them are text (rows,), both int64.

        length: pad, or cut, to this one instead of the first of ``lengths`` that is long enough.
        Raises ObservationError for a prompt that is longer than all of them.
        """
        texts = [template.replace('{task}', task) for template in self._templates]
        rows = [self._encoder.encode(text, state) for text in texts]
        needed = max(row.size for row in rows)
        fitting = [choice for choice in self.lengths if choice >= needed]
        if length is None and not fitting:
            raise ObservationError(
                'task',
                found=f'a prompt of {needed} tokens',
                expected=f'at most {self.lengths[-1]}',
                remedy='shorten the instruction, or raise vla.state_prompt.lengths',
            )
        size = fitting[0] if length is None else length
        rows = [row[:size] for row in rows]
        counts = np.array([row.size for row in rows], dtype=np.int64)
        tokens = np.full((len(rows), size), self._encoder.tokenizer.pad, dtype=np.int64)
        for place, row in enumerate(rows):
            tokens[place, : row.size] = row
        return tokens, counts


def make_instruction(checkpoint: CheckpointDescription, config: VlaConfig) -> Instruction | None:
    """Return what turns instructions into tokens; None for a policy that reads none.

    Raises as ``make_prompt_encoder``.
    """
    encoder = make_prompt_encoder(checkpoint, tokenizer=config.tokenizer, compat=config.compat)
    if encoder is None:
        return None
    templates: tuple[str, ...] = ('{task}',)
    if config.cfg_beta is not None:
        templates = (config.cfg_conditioned, config.cfg_unconditioned)
    lengths = config.state_prompt.resolve(encoder.longest)
    return Instruction(encoder, lengths=lengths, templates=templates)


def make_prompt_encoder(
    checkpoint: CheckpointDescription, *, tokenizer: str | None = None, compat: str = '0.6'
) -> PromptEncoder | None:
    """Return what makes the tokens of this policy; None for one that reads no instruction.

    tokenizer: file or folder to use instead of what the checkpoint brings.
    Raises CheckpointError where there is no tokenizer, or one for another vocabulary, ConfigError
    where the library that reads it is missing.
    """
    step = tokenizer_step(checkpoint.preprocessor)
    if step is None:
        return None
    places = tokenizer_places(checkpoint.folder, step, chosen=tokenizer)
    path = find_tokenizer(places)
    if path is None:
        raise _no_tokenizer(step, places)
    loaded = load_tokenizer(path)
    _check_vocabulary(checkpoint, loaded)
    state = checkpoint.config.robot_state_feature
    return PromptEncoder(
        checkpoint.preprocessor,
        loaded,
        state_size=0 if state is None else state.shape[0],
        padded_state=compat == '0.4',
    )


def _no_tokenizer(step: TokenizerStep, places: Sequence[Path]) -> CheckpointError:
    name = step.tokenizer_name or 'the tokenizer this policy was trained with'
    return CheckpointError(
        'tokenizer',
        found=f'none in {", ".join(map(str, places))}',
        expected='tokenizer.json, or a SentencePiece model',
        remedy=f'copy tokenizer.json and tokenizer_config.json of {name} into the folder '
        f'{TOKENIZER_FOLDER} of the checkpoint, or name the file in vla.tokenizer; on the '
        'machine that trained the policy they are in the cache of Hugging Face, under '
        'hub/models--*/snapshots',
    )


def _check_vocabulary(checkpoint: CheckpointDescription, tokenizer: Tokenizer) -> None:
    sizes = getattr(checkpoint.config, 'sizes', None)
    if sizes is not None and tokenizer.size > sizes.language.vocabulary:
        raise CheckpointError(
            str(tokenizer.source),
            found=f'{tokenizer.size} tokens',
            expected=f'at most {sizes.language.vocabulary}, which the policy knows',
            remedy='use the tokenizer the policy was trained with',
        )


def _text_steps(pipeline: PipelineSpec) -> list[Step]:
    kinds = (NewLineStep, StatePromptStep)
    return [step for step in pipeline.steps if isinstance(step, kinds)]


def _state_scaler(pipeline: PipelineSpec, text_steps: Sequence[Step]) -> FeatureScaler | None:
    """The scaling of the state that comes before it is written into the prompt, if any does."""
    for step in pipeline.steps:
        if any(step is text for text in text_steps if isinstance(text, StatePromptStep)):
            return None
        if isinstance(step, NormalizeStep):
            for scaling in step.scalings:
                if scaling.key == STATE_KEY:
                    return FeatureScaler(scaling, eps=step.eps, device=torch.device('cpu'))
            return None
    return None
