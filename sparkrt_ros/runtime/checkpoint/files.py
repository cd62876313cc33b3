"""Finding and reading the files of a policy folder safely. Imports no torch."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sparkrt_ros.runtime.errors import CheckpointError

CONFIG_FILE = 'config.json'
WEIGHTS_FILE = 'model.safetensors'
PREPROCESSOR_FILE = 'policy_preprocessor.json'
POSTPROCESSOR_FILE = 'policy_postprocessor.json'

PICKLE_SUFFIXES = ('.bin', '.pt', '.pth', '.ckpt', '.pkl')
_LFS_MAGIC = b'version https://git-lfs.github.com/spec/'
_LFS_MAX_BYTES = 1024


def check_folder(folder: Path) -> None:
    """Raise ``CheckpointError`` unless ``folder`` is a folder holding ``config.json``."""
    if not folder.is_dir():
        kind = 'a file' if folder.exists() else 'nothing there'
        raise CheckpointError(
            str(folder),
            found=kind,
            expected='a policy folder on this machine',
            remedy='give the folder that holds config.json and model.safetensors; a policy on a '
            'hub must be downloaded first',
        )
    if not (folder / CONFIG_FILE).exists():
        raise CheckpointError(
            str(folder / CONFIG_FILE),
            found='no such file',
            expected='the configuration of the policy',
            remedy=_nested_folder_hint(folder),
        )


def _nested_folder_hint(folder: Path) -> str:
    for pattern in ('pretrained_model', 'checkpoints/last/pretrained_model'):
        if (folder / pattern / CONFIG_FILE).exists():
            return f'give {folder / pattern} instead'
    return 'give the folder that LeRobot calls pretrained_model'


def check_weights_present(folder: Path) -> Path:
    """Return the path of the weight file; raise ``CheckpointError`` saying what is there instead.

    Weights are read from safetensors only: other formats can run code when they are opened.
    """
    path = folder / WEIGHTS_FILE
    if path.is_file():
        return path
    found, remedy = 'no such file', 'copy the whole policy folder, weights included'
    pickles = sorted(p.name for p in folder.iterdir() if p.suffix in PICKLE_SUFFIXES)
    if (folder / f'{WEIGHTS_FILE}.index.json').exists():
        found = f'{WEIGHTS_FILE}.index.json: weights in several files'
        remedy = 'merge them into one safetensors file'
    elif (folder / 'adapter_model.safetensors').exists():
        found = 'adapter_model.safetensors: a PEFT adapter without its base model'
        remedy = 'merge the adapter into the base model and save the result'
    elif pickles:
        found = f'no such file, but {", ".join(pickles)}'
        remedy = (
            'convert to safetensors where you trust the file; pickle formats are never opened, '
            'since they can run code'
        )
    raise CheckpointError(str(path), found=found, expected='the weights', remedy=remedy)


def resolve_inside(folder: Path, name: object, *, where: str) -> Path:
    """Return the path of a file that a processor file names; it must lie inside ``folder``.

    Absolute paths, ``..`` and links that lead out are refused with ``CheckpointError``. A folder
    may consist of links into one other folder (a hub cache, a linked installation): links into
    the folder in which ``config.json`` really lies are followed.
    """
    if not isinstance(name, str) or not name:
        raise CheckpointError(where, found=repr(name), expected='the name of a file in the folder')
    relative = Path(name)
    if relative.is_absolute() or '..' in relative.parts or '\\' in name or '\0' in name:
        raise CheckpointError(
            where, found=repr(name), expected=f'a path that stays inside {folder}'
        )
    root = folder.resolve()
    target = (root / relative).resolve()
    roots = [root, (root / CONFIG_FILE).resolve().parent]
    if not any(target.is_relative_to(allowed) for allowed in roots):
        raise CheckpointError(
            where,
            found=f'{name!r}, a link to {target}',
            expected=f'a file that lies inside {folder}',
            remedy='copy the file into the folder',
        )
    return folder / relative


def lfs_pointer_text(path: Path) -> str | None:
    """Say what the file should have been if it is a Git LFS pointer; None if it is none."""
    size = path.stat().st_size
    if size > _LFS_MAX_BYTES:
        return None
    text = path.read_bytes()
    if not text.startswith(_LFS_MAGIC):
        return None
    match = re.search(rb'^size (\d+)', text, re.MULTILINE)
    needed = f' of {int(match[1])} bytes' if match else ''
    return f'a Git LFS pointer of {size} bytes instead of the file{needed}'


LFS_REMEDY = 'fetch the real file: run `git lfs pull` in the folder, or download it again'


def read_json(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file.

    Raises ``CheckpointError`` for a missing file, an LFS pointer, wrong encoding, a syntax error,
    a key given twice, NaN or Infinity, or anything but an object.
    """
    if not path.is_file():
        raise CheckpointError(
            str(path),
            found='no such file',
            expected='a JSON file',
            remedy='copy the whole policy folder',
        )
    pointer = lfs_pointer_text(path)
    if pointer:
        raise CheckpointError(str(path), found=pointer, expected='JSON', remedy=LFS_REMEDY)
    try:
        data = parse_json(path.read_bytes())
    except ValueError as error:
        raise CheckpointError(
            str(path), found=f'invalid JSON ({error})', expected='a JSON object'
        ) from error
    if not isinstance(data, dict):
        raise CheckpointError(str(path), found=type(data).__name__, expected='a JSON object')
    return data


def parse_json(text: bytes) -> Any:
    """Parse UTF-8 JSON strictly; raise ``ValueError`` for repeated keys and non-finite numbers."""
    try:
        return json.loads(
            text.decode('utf-8'),
            object_pairs_hook=_unique_pairs,
            parse_constant=_refuse_constant,
        )
    except RecursionError as error:
        raise ValueError('nested too deeply') from error


def _unique_pairs(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        names = [name for name, _ in pairs]
        repeated = sorted({name for name in names if names.count(name) > 1})
        raise ValueError(f'key given twice: {", ".join(repeated)}')
    return result


def _refuse_constant(name: str) -> float:
    raise ValueError(f'non-finite number {name}')
