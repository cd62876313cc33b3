"""The policy folders LeRobot saved, completed with the weights derived from names."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from act_cases import SESSION_CASES
from safetensors.numpy import save_file
from seeded_weights import seeded_tensor

GOLDEN = Path(__file__).resolve().parent


def lerobot_shapes(name: str) -> dict[str, tuple[int, ...]]:
    """Names and shapes of every tensor LeRobot saves for a case of act_keys.json."""
    shapes = json.loads((GOLDEN / 'act_keys.json').read_text())[name]
    return {key: tuple(shape) for key, shape in shapes.items()}


def write_session_folder(name: str, target: Path) -> Path:
    """Write the whole policy folder of a session case to ``target``, and return it."""
    shutil.copytree(GOLDEN / SESSION_CASES[name].folder, target)
    shapes = lerobot_shapes(f'session/{name}')
    weights = {
        key: seeded_tensor(key.removeprefix('model.'), shape) for key, shape in shapes.items()
    }
    save_file(weights, target / 'model.safetensors')
    return target
