"""A few moments of the embedded robot as a bag, and the options of the run that replays it.

Run as a program, in the environment of the tests, it renders the moments anew and writes
``lerobot_parity/observations.npz`` through the command line itself:

    PYTHONPATH=test:test/golden python test/golden/lerobot_parity_case.py

What LeRobot computes from them is then made where LeRobot is installed:

    cd test/golden/lerobot_parity
    python ../../../tools/lerobot_actions.py ../../../checkpoints/embedded_pick_place \
        observations.npz actions.npz
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from bag_factory import IMAGE, JOINT_STATE, Recorded, cdr, header, message, write_mcap

from sparkrt_ros.cli.main import main as sparkrt
from sparkrt_ros.runtime.config import RuntimeConfig
from sparkrt_ros.runtime.policy import load_policy
from sparkrt_ros.sim.demos import DemoSpec
from sparkrt_ros.sim.evaluate import observe
from sparkrt_ros.sim.task import PickPlace

HERE = Path(__file__).resolve().parent / 'lerobot_parity'
CHECKPOINT = HERE.parents[2] / 'checkpoints' / 'embedded_pick_place'
OBSERVATIONS, ACTIONS, ROBOT = HERE / 'observations.npz', HERE / 'actions.npz', HERE / 'robot.yaml'
CAMERAS = {
    'observation.images.front': '/front_camera/image_raw',
    'observation.images.wrist': '/wrist_camera/image_raw',
}
STATE = 'observation.state'
JOINTS = ('shoulder_pan', 'shoulder_lift', 'elbow_flex', 'wrist_flex', 'gripper')
START_NS, PERIOD_NS = 1_700_000_000_000_000_000, 500_000_000
# Above the cube, closing, carrying, above the tray: control steps of one episode.
SEED, STEPS = 7, (0, 22, 45, 70)


def stamps_ns(count: int) -> np.ndarray:
    return START_NS + PERIOD_NS * np.arange(count, dtype=np.int64)


def write_bag(path: Path, arrays: Mapping[str, np.ndarray]) -> Path:
    """One message of every stream for each row, all with the stamp of that row."""
    messages = []
    for index, stamp_ns in enumerate(stamps_ns(len(arrays[STATE])).tolist()):
        for key, topic in CAMERAS.items():
            height, width, _ = arrays[key][index].shape
            pixels = arrays[key][index].ravel()
            fields = (height, width, 'rgb8', 0, 3 * width, pixels)
            content = message(IMAGE, header(stamp_ns), *fields)
            messages.append(_recorded(topic, IMAGE, stamp_ns, content))
        messages.append(_joints(stamp_ns, arrays[STATE][index]))
    # The last moment is looked at when time has gone on a little.
    messages.append(_joints(stamp_ns + PERIOD_NS // 5, arrays[STATE][index]))
    write_mcap(path, messages)
    return path


def _joints(stamp_ns: int, positions: np.ndarray) -> Recorded:
    none = np.array([])
    fields = (list(JOINTS), positions.astype(np.float64), none, none)
    content = message(JOINT_STATE, header(stamp_ns), *fields)
    return _recorded('/joint_states', JOINT_STATE, stamp_ns, content)


def _recorded(topic: str, kind: str, stamp_ns: int, content: object) -> Recorded:
    return Recorded(topic=topic, kind=kind, log_ns=stamp_ns + 5_000_000, data=cdr(content))


def parity(bag: Path, *options: str) -> int:
    """Run ``sparkrt parity`` on such a bag with the reference alone on one thread."""
    arm = 'backend=eager,precision=fp32,device=cpu,threads=1'
    return sparkrt(
        [
            *('parity', str(bag), '--robot', str(ROBOT), '--checkpoint', str(CHECKPOINT)),
            *('--reference', arm, '--candidate', arm, '--rate-hz', str(1e9 / PERIOD_NS)),
            *options,
        ]
    )


def rendered() -> dict[str, np.ndarray]:
    """What the policy sees at ``STEPS`` of an episode that it drives itself."""
    task, spec, seen = PickPlace(seed=SEED), DemoSpec(), []
    config = RuntimeConfig(backend='eager', device='cpu', num_threads=1)
    with load_policy(CHECKPOINT, config=config) as policy:
        for step in range(max(STEPS) + 1):
            observation = observe(task, spec)
            if step in STEPS:
                seen.append(observation)
            task.step(policy.step(observation).astype(np.float64))
    arrays = {key: np.stack([o.images[key] for o in seen]) for key in CAMERAS}
    return {**arrays, STATE: np.stack([o.state for o in seen])}


def compress(path: Path) -> None:
    """The export is uncompressed, and tells where the bag was; a golden file does neither."""
    with np.load(path, allow_pickle=False) as archive:
        arrays = {name: archive[name] for name in archive.files}
    told = json.loads(str(arrays['meta']))
    arrays['meta'] = np.array(json.dumps({**told, 'bag': Path(told['bag']).name}))
    with path.open('wb') as file:
        np.savez_compressed(file, **arrays)


def main() -> int:
    with TemporaryDirectory() as folder:
        bag = write_bag(Path(folder) / 'moments.mcap', rendered())
        code = parity(bag, '--export-observations', str(OBSERVATIONS))
    compress(OBSERVATIONS)
    return code


if __name__ == '__main__':
    sys.exit(main())
