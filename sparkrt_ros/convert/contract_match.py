"""Whether a robot contract and a policy fit, and how they are bound, by name only."""

from __future__ import annotations

from dataclasses import dataclass

from sparkrt_ros.convert.contract_types import CameraSpec, RobotContract
from sparkrt_ros.runtime.errors import ContractError
from sparkrt_ros.runtime.types import Capabilities


@dataclass(frozen=True, kw_only=True)
class PolicyBinding:
    """How one contract serves one policy.

    cameras: in the order the policy consumes them; nothing else needs a subscription.
    unused_cameras: described by the contract, not wanted by the policy; worth one log line.
    unchecked_cameras: their size is known only with the first picture.
    """

    cameras: tuple[CameraSpec, ...]
    unused_cameras: tuple[CameraSpec, ...]
    unchecked_cameras: tuple[CameraSpec, ...]


def check_contract(contract: RobotContract, capabilities: Capabilities) -> PolicyBinding:
    """Bind cameras by key and compare every size; what a policy needs must be there exactly.

    Raises ContractError listing all mismatches at once, each with both sides in full.
    """
    problems = [
        *_camera_problems(contract, capabilities),
        *_state_problems(contract, capabilities),
        *_action_problems(contract, capabilities),
    ]
    if problems:
        raise ContractError(
            f'contract {contract.name} ({contract.source or "in memory"}) '
            f'with policy {capabilities.model_type}',
            found='; '.join(found for found, _, _ in problems),
            expected='; '.join(expected for _, expected, _ in problems),
            remedy='; '.join(remedy for _, _, remedy in problems),
        )
    by_key = {camera.key: camera for camera in contract.cameras}
    cameras = tuple(by_key[key] for key in capabilities.camera_keys)
    return PolicyBinding(
        cameras=cameras,
        unused_cameras=tuple(c for c in contract.cameras if c not in cameras),
        unchecked_cameras=tuple(c for c in cameras if c.output_size is None),
    )


_Problem = tuple[str, str, str]


def _camera_problems(contract: RobotContract, capabilities: Capabilities) -> list[_Problem]:
    offered = {camera.key: camera for camera in contract.cameras}
    wanted = capabilities.image_shapes
    problems: list[_Problem] = []
    missing = [key for key in wanted if key not in offered]
    if missing:
        spare = [camera.name for camera in contract.cameras if camera.key not in wanted]
        rename = f' of {" or ".join(spare)}' if spare else ''
        problems.append(
            (
                f'cameras {_listed(offered)}, without {_listed(missing)}',
                f'cameras {_listed(wanted)}',
                f'set cameras[].key{rename} to {" and ".join(missing)}, '
                'if they show what the policy was trained with',
            )
        )
    for key, (channels, height, width) in wanted.items():
        size = offered[key].output_size if key in offered else None
        if channels != 3:
            problems.append(
                (f'{key} in {channels} channels', f'{key} in 3 channels', 'use an RGB policy')
            )
        if size is not None and size != (width, height):
            problems.append(
                (
                    f'{key} as {size[0]}x{size[1]} (width x height) after crop and resize',
                    f'{key} as {width}x{height}',
                    f'set crop and resize of camera {offered[key].name} as in training',
                )
            )
    return problems


def _state_problems(contract: RobotContract, capabilities: Capabilities) -> list[_Problem]:
    problems: list[_Problem] = []
    names = [str(entry) for entry in contract.state]
    if capabilities.state_size and capabilities.state_size != len(names):
        problems.append(
            (
                f'a state of {len(names)}: {_listed(names)}',
                f'a state of {capabilities.state_size}',
                'list in state.vector what the policy was trained with, in its order',
            )
        )
    if capabilities.environment_state_size:
        problems.append(
            (
                'no environment state: a contract has none',
                f'an environment state of {capabilities.environment_state_size}',
                'use a policy without observation.environment_state',
            )
        )
    return problems


def _action_problems(contract: RobotContract, capabilities: Capabilities) -> list[_Problem]:
    if capabilities.action_size == len(contract.action):
        return []
    return [
        (
            f'an action of {len(contract.action)}: {_listed(contract.action)}',
            f'an action of {capabilities.action_size}',
            'list in action.vector what the policy was trained with, in its order',
        )
    ]


def _listed(names: object) -> str:
    values = [str(name) for name in names] if isinstance(names, (list, tuple, dict)) else []
    return f'[{", ".join(values)}]'
