"""Text to tokens with the tokenizer of a policy, from files on this machine and never the network.

Two kinds of file hold the same tokenizer: ``tokenizer.json``, read by the library tokenizers, and
a SentencePiece model. Neither library is needed unless a policy reads an instruction.
Imports no torch.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparkrt_ros.runtime.checkpoint.tokenizer_file import MODEL_SUFFIX, SETTINGS_FILE
from sparkrt_ros.runtime.errors import CheckpointError, ConfigError

_PAD, _BOS, _EOS = '<pad>', '<bos>', '<eos>'
_PROBE = 'a'


@dataclass(frozen=True, kw_only=True)
class Tokenizer:
    """A tokenizer that is loaded. pad: the token after a text that is shorter than wanted.

    size: tokens are below it. source: the file, for messages.
    """

    source: Path
    size: int
    pad: int
    before: tuple[int, ...]
    after: tuple[int, ...]
    split: Callable[[str], Sequence[int]]

    def encode(self, text: str) -> tuple[int, ...]:
        """Return the tokens of ``text``, with those that begin and end every text."""
        return (*self.before, *self.split(text), *self.after)

    def cut(self, tokens: Sequence[int], limit: int) -> tuple[int, ...]:
        """Return the result of ``encode`` without as much of its end as is beyond ``limit``."""
        kept = limit - len(self.after)
        return (*tokens[:kept], *self.after) if len(tokens) > limit else tuple(tokens)


def load_tokenizer(path: Path) -> Tokenizer:
    """Read a tokenizer file. Raises ConfigError naming the library that is missing.

    Raises CheckpointError for a file that is damaged, or without the tokens every text begins
    with or is padded with.
    """
    if path.suffix == MODEL_SUFFIX:
        return _from_sentencepiece(path)
    return _from_json(path)


def _from_json(path: Path) -> Tokenizer:
    library = _import('tokenizers', path)
    try:
        loaded = library.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exception
        raise _damaged(path, error) from error
    loaded.no_padding()
    loaded.no_truncation()
    settings = _settings(path)

    def token(name: str, default: str) -> int:
        text = _text_of(settings.get(name)) or default
        number = loaded.token_to_id(text)
        if number is None:
            raise CheckpointError(
                str(path), found=f'no token {text!r}', expected=f'the {name.replace("_", " ")}'
            )
        return int(number)

    def split(text: str) -> Sequence[int]:
        ids: list[int] = loaded.encode(text, add_special_tokens=False).ids
        return ids

    before, after = _ends(loaded, settings, token)
    return Tokenizer(
        source=path,
        size=int(loaded.get_vocab_size(with_added_tokens=True)),
        pad=token('pad_token', _PAD),
        before=before,
        after=after,
        split=split,
    )


def _ends(
    loaded: Any, settings: dict[str, Any], token: Callable[[str, str], int]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The tokens before and after every text: as the settings say, or as the file itself does."""
    begins, ends = settings.get('add_bos_token'), settings.get('add_eos_token')
    if begins is not None or ends is not None:
        before = (token('bos_token', _BOS),) if begins else ()
        return before, (token('eos_token', _EOS),) if ends else ()
    plain = loaded.encode(_PROBE, add_special_tokens=False).ids
    whole = loaded.encode(_PROBE, add_special_tokens=True).ids
    start = next(at for at in range(len(whole)) if whole[at : at + len(plain)] == plain)
    return tuple(whole[:start]), tuple(whole[start + len(plain) :])


def _from_sentencepiece(path: Path) -> Tokenizer:
    library = _import('sentencepiece', path)
    loaded = library.SentencePieceProcessor()
    try:
        loaded.LoadFromFile(str(path))
    except (OSError, RuntimeError) as error:
        raise _damaged(path, error) from error
    pad, begin = int(loaded.pad_id()), int(loaded.bos_id())
    for number, name in ((pad, _PAD), (begin, _BOS)):
        if number < 0:
            raise CheckpointError(str(path), found=f'no token {name}', expected='one')

    def split(text: str) -> Sequence[int]:
        ids: list[int] = loaded.EncodeAsIds(text)
        return ids

    return Tokenizer(
        source=path,
        size=int(loaded.GetPieceSize()),
        pad=pad,
        before=(begin,),
        after=(),
        split=split,
    )


def _settings(path: Path) -> dict[str, Any]:
    """What stands beside ``tokenizer.json``; empty where nothing does."""
    beside = path.with_name(SETTINGS_FILE)
    if not beside.is_file():
        return {}
    try:
        settings = json.loads(beside.read_text(encoding='utf-8'))
    except ValueError as error:
        raise _damaged(beside, error) from error
    if not isinstance(settings, dict):
        raise CheckpointError(str(beside), found=type(settings).__name__, expected='an object')
    return settings


def _text_of(token: Any) -> str | None:
    """A token is written as its text, or as an object that holds it."""
    content = token.get('content') if isinstance(token, dict) else token
    return content if isinstance(content, str) else None


def _damaged(path: Path, error: Exception) -> CheckpointError:
    return CheckpointError(
        str(path),
        found=f'a file that cannot be read ({error!r})',
        expected='a tokenizer',
        remedy='copy or download the file again',
    )


def _import(name: str, path: Path) -> Any:
    try:
        return __import__(name)
    except ImportError as error:
        raise ConfigError(
            f'tokenizer {path}',
            found=f'no Python package {name}',
            expected='it, to read this file',
            remedy=f'pip install {name}',
        ) from error
