"""Reading a whole policy folder.

``describe_checkpoint`` checks everything that can be checked without the weights themselves and
needs no torch; ``load_checkpoint`` reads the weights as well.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sparkrt_ros.runtime.checkpoint.config_file import read_config
from sparkrt_ros.runtime.checkpoint.consistency import check_pipelines, source_keys
from sparkrt_ros.runtime.checkpoint.embedded_stats import embedded_pipelines
from sparkrt_ros.runtime.checkpoint.features import PolicyConfig
from sparkrt_ros.runtime.checkpoint.files import (
    CONFIG_FILE,
    POSTPROCESSOR_FILE,
    PREPROCESSOR_FILE,
    check_folder,
    check_weights_present,
)
from sparkrt_ros.runtime.checkpoint.formats import WEIGHT_FORMATS
from sparkrt_ros.runtime.checkpoint.pipeline_file import read_postprocessor, read_preprocessor
from sparkrt_ros.runtime.checkpoint.safetensors_file import (
    SafetensorsHeader,
    TensorInfo,
    read_arrays,
    read_header,
)
from sparkrt_ros.runtime.checkpoint.steps import PipelineSpec
from sparkrt_ros.runtime.checkpoint.tokenizer_file import tokenizer_files
from sparkrt_ros.runtime.checkpoint.weights import WeightNames, sort_names
from sparkrt_ros.runtime.errors import CheckpointError

if TYPE_CHECKING:
    import torch

_BLOCK_BYTES = 1 << 20


@dataclass(frozen=True, kw_only=True)
class CheckpointDescription:
    """What a policy folder holds, short of the weights.

    preprocessor, postprocessor: the steps in the order of their files, statistics included.
    source_keys: policy key -> key under which the robot side must provide it.
    weights_file: the file errors about weights name.
    tensors: weight name (without ``model.``) -> type and shape in the file.
    warnings: what a user should know although the policy can run.
    digest: sha256 over configuration, processor files, state files, tokenizer and weights.
    """

    folder: Path
    config: PolicyConfig
    preprocessor: PipelineSpec
    postprocessor: PipelineSpec
    source_keys: Mapping[str, str]
    weights_file: Path
    tensors: Mapping[str, TensorInfo]
    warnings: tuple[str, ...]
    digest: str


@dataclass(frozen=True, kw_only=True)
class Checkpoint(CheckpointDescription):
    """A policy folder read completely.

    weights: name without ``model.`` -> tensor on the CPU. Large policies read each tensor when it
        is asked for, as stored; of others, floating tensors are float32.
    """

    weights: Mapping[str, torch.Tensor]


def describe_checkpoint(
    folder: Path | str,
    *,
    allow_unknown_fields: bool = False,
    dataset: str | None = None,
    with_digest: bool = True,
) -> CheckpointDescription:
    """Check a policy folder and describe it, without reading weights and without torch.

    allow_unknown_fields: warn of fields of ``config.json`` that are not known, instead of
        refusing them.
    dataset: which statistics to use, for a policy that holds those of several datasets.
    with_digest: False leaves the digest empty, so that the weights, which may be gigabytes, are
        not read at all.
    Raises ``CheckpointError`` naming file, key, found, expected and remedy.
    """
    return _describe(
        Path(folder),
        allow_unknown_fields=allow_unknown_fields,
        dataset=dataset,
        with_digest=with_digest,
    )[0]


def load_checkpoint(
    folder: Path | str, *, allow_unknown_fields: bool = False, dataset: str | None = None
) -> Checkpoint:
    """Read a policy folder as LeRobot saves it; arguments and errors as ``describe_checkpoint``.

    Everything else is checked before the first weight is read. Nothing is ever unpickled.
    """
    description, header, names = _describe(
        Path(folder),
        allow_unknown_fields=allow_unknown_fields,
        dataset=dataset,
        with_digest=True,
    )
    values = {
        item.name: getattr(description, item.name) for item in dataclasses.fields(description)
    }
    read = WEIGHT_FORMATS[description.config.model_type].read
    return Checkpoint(**values, weights=read(header, names.weights))


def _describe(
    folder: Path, *, allow_unknown_fields: bool, dataset: str | None, with_digest: bool
) -> tuple[CheckpointDescription, SafetensorsHeader, WeightNames]:
    check_folder(folder)
    config, warnings = read_config(folder, allow_unknown_fields=allow_unknown_fields)
    header = read_header(check_weights_present(folder))
    file_format = WEIGHT_FORMATS[config.model_type]
    names = sort_names(header)
    arranged, name_notes = file_format.arrange(config, names.weights)
    names = dataclasses.replace(names, weights=arranged)
    tensors = names.weight_infos(header)
    file_format.check(config, tensors, file=header.path)
    preprocessor, postprocessor, notes = _pipelines(folder, config, header, names, dataset)
    notes += [f'{header.path.name}: {note}' for note in name_notes]
    files = [folder / CONFIG_FILE, header.path]
    for pipeline in (preprocessor, postprocessor):
        files += [pipeline.file, *pipeline.state_files]
    tokenizer = tokenizer_files(folder, preprocessor)
    files += tokenizer
    if config.reads_instruction and not tokenizer:
        notes.append('no tokenizer in the folder: name its file when the policy is loaded')
    description = CheckpointDescription(
        folder=folder,
        config=config,
        preprocessor=preprocessor,
        postprocessor=postprocessor,
        source_keys=source_keys(config, preprocessor),
        weights_file=header.path,
        tensors=tensors,
        warnings=(*warnings, *notes, *check_pipelines(config, preprocessor, postprocessor)),
        digest=digest_files(folder, files) if with_digest else '',
    )
    return description, header, names


def _pipelines(
    folder: Path,
    config: PolicyConfig,
    header: SafetensorsHeader,
    names: WeightNames,
    dataset: str | None,
) -> tuple[PipelineSpec, PipelineSpec, list[str]]:
    """Return the pipelines from their files, or from the statistics among the weights."""
    present = [
        name for name in (PREPROCESSOR_FILE, POSTPROCESSOR_FILE) if (folder / name).exists()
    ]
    older = bool(names.statistics) and WEIGHT_FORMATS[config.model_type].has_older_form
    if present or not older:
        notes = []
        if names.statistics:
            notes = [
                f'{header.path.name}: {len(names.statistics)} statistics among the weights are '
                'not used: the processor files decide'
            ]
        before = read_preprocessor(folder, dataset=dataset)
        return before, read_postprocessor(folder, dataset=dataset), notes
    stored = read_arrays(header, names.statistics.values())
    arrays = {name: stored[there] for name, there in names.statistics.items()}
    before, after = embedded_pipelines(config, arrays, file=header.path, dataset=dataset)
    return before, after, []


def digest_files(folder: Path, files: Iterable[Path]) -> str:
    """Return the sha256 over the names, sizes and contents of ``files``, in order of names."""
    digest = hashlib.sha256()
    by_name = {path.relative_to(folder).as_posix(): path for path in files}
    for name, path in sorted(by_name.items()):
        try:
            with path.open('rb') as stream:
                digest.update(f'{name}\0{path.stat().st_size}\0'.encode())
                while block := stream.read(_BLOCK_BYTES):
                    digest.update(block)
        except OSError as error:
            raise CheckpointError(
                str(path), found=str(error), expected='a readable file'
            ) from error
    return digest.hexdigest()
