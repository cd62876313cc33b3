"""Where the tokenizer of a policy is, on this machine. Imports no torch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from sparkrt_ros.runtime.checkpoint.steps import PipelineSpec, TokenizerStep

JSON_FILE = 'tokenizer.json'
SETTINGS_FILE = 'tokenizer_config.json'
MODEL_SUFFIX = '.model'
TOKENIZER_FOLDER = 'tokenizer'


def tokenizer_step(pipeline: PipelineSpec) -> TokenizerStep | None:
    """The step that needs a tokenizer, if any does."""
    return next((step for step in pipeline.steps if isinstance(step, TokenizerStep)), None)


def tokenizer_places(
    folder: Path, step: TokenizerStep, *, chosen: str | None = None
) -> tuple[Path, ...]:
    """Where the tokenizer of a policy is looked for, in this order; a chosen one is the only."""
    if chosen is not None:
        return (Path(chosen).expanduser(),)
    brought = () if step.folder is None else (step.folder,)
    return (*brought, folder / TOKENIZER_FOLDER, folder)


def find_tokenizer(places: Sequence[Path]) -> Path | None:
    """Return the first tokenizer file in ``places``, each a file or a folder; None: there is none.

    In a folder ``tokenizer.json`` comes first, then a single SentencePiece model.
    """
    for place in places:
        if place.is_file():
            return place
        if (place / JSON_FILE).is_file():
            return place / JSON_FILE
        models = sorted(place.glob(f'*{MODEL_SUFFIX}')) if place.is_dir() else []
        if len(models) == 1:
            return models[0]
    return None


def tokenizer_files(folder: Path, pipeline: PipelineSpec) -> tuple[Path, ...]:
    """The files of the tokenizer that a policy folder brings; none where it brings none."""
    step = tokenizer_step(pipeline)
    if step is None:
        return ()
    found = find_tokenizer(tokenizer_places(folder, step))
    if found is None:
        return ()
    settings = found.with_name(SETTINGS_FILE)
    return (found, settings) if found.name == JSON_FILE and settings.is_file() else (found,)
