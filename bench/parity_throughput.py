"""How many times faster than it was recorded a bag is proven.

python bench/parity_throughput.py --device cuda
python bench/parity_throughput.py --seconds 20 --images jpeg --json out.json

Makes a bag of two cameras of the policy's own size and of joint states, then runs what
``sparkrt parity`` runs: replay, decode, infer with the reference (eager fp32) and with the form
that would serve, compare. Reading, decoding and the replay itself run on one thread beside the
inferences; their own pace, with nothing inferred, is measured too. Loading the policies and making
the bag are not counted. Needs no ROS.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import yaml
from rosbags.typesys import Stores, get_typestore

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from sparkrt_ros.convert.contract import load_contract  # noqa: E402
from sparkrt_ros.nodes.policy_parameters import pacing_config  # noqa: E402
from sparkrt_ros.replay.arms import ArmSpec, load_arm, node_values  # noqa: E402
from sparkrt_ros.replay.bag import open_bag  # noqa: E402
from sparkrt_ros.replay.bag_mcap_writer import McapWriter  # noqa: E402
from sparkrt_ros.replay.offline import Replay, ReplayOptions  # noqa: E402
from sparkrt_ros.replay.run import REFERENCE, ParityOptions, run_parity  # noqa: E402
from sparkrt_ros.runtime.checkpoint.load import describe_checkpoint  # noqa: E402
from sparkrt_ros.sim.random_policy import RANDOM_POLICIES, write_random_policy  # noqa: E402

STORE = get_typestore(Stores.LATEST)
SECOND = 1_000_000_000
START_NS = 1_700_000_000 * SECOND
CAMERA_HZ, JOINT_HZ = 30, 100
FRAMES = 24
JPEG_QUALITY = 90
IMAGE = 'sensor_msgs/msg/Image'
COMPRESSED = 'sensor_msgs/msg/CompressedImage'
JOINT_STATE = 'sensor_msgs/msg/JointState'


@dataclass(frozen=True, kw_only=True)
class Robot:
    """What the bag is recorded from: the sizes of a policy. rate_hz: of the rows of a chunk."""

    height: int
    width: int
    joints: tuple[str, ...]
    jpeg: bool
    rate_hz: float


def contract(robot: Robot) -> dict[str, Any]:
    cameras = [
        {
            'name': name,
            'key': f'observation.images.{name}',
            'topic': f'{name}/image_raw' + ('/compressed' if robot.jpeg else ''),
            'type': 'compressed_image' if robot.jpeg else 'image',
            'source_size': [robot.width, robot.height],
            'max_age_s': 0.2,
        }
        for name in ('front', 'wrist')
    ]
    joints = [
        {'name': name, 'unit': 'rad', 'limits': [-10.0, 10.0], 'max_velocity': 50.0}
        for name in robot.joints
    ]
    return {
        'name': 'bench',
        'policy_rate_hz': robot.rate_hz,
        'control_rate_hz': 100.0,
        'hold_s': 1.0,
        'max_skew_s': 0.1,
        'cameras': cameras,
        'joints': joints,
        'state': {
            'streams': [{'name': 'joints', 'topic': 'joint_states', 'max_age_s': 0.1}],
            'vector': list(robot.joints),
        },
        'action': {
            'vector': list(robot.joints),
            'outputs': [
                {
                    'name': 'arm',
                    'type': 'float64_multi_array',
                    'topic': 'commands',
                    'joints': list(robot.joints),
                }
            ],
        },
    }


def make(kind: str, *fields: Any) -> Any:
    return STORE.types[kind](*fields)


def header(stamp_ns: int) -> Any:
    stamp = make('builtin_interfaces/msg/Time', *divmod(stamp_ns, SECOND))
    return make('std_msgs/msg/Header', stamp, '')


def pictures(robot: Robot, *, seed: int) -> list[np.ndarray]:
    """FRAMES pictures (H, W, 3) of coarse noise that slides: edges and areas, as in a room."""
    random = np.random.default_rng(seed)
    coarse = random.integers(0, 256, (-(-robot.height // 16), -(-robot.width // 16), 3))
    full = coarse.astype(np.uint8).repeat(16, axis=0).repeat(16, axis=1)
    full = cv2.GaussianBlur(full[: robot.height, : robot.width], (5, 5), 0)
    return [np.roll(full, 8 * k, axis=1) for k in range(FRAMES)]


def encoders(robot: Robot, *, seed: int) -> list[Callable[[int], bytes]]:
    """For each frame: stamp -> the message in CDR."""
    made = []
    for picture in pictures(robot, seed=seed):
        if robot.jpeg:
            _, data = cv2.imencode('.jpg', picture, (cv2.IMWRITE_JPEG_QUALITY, JPEG_QUALITY))
            fields = ('jpeg', data.ravel())
            made.append(_encoder(COMPRESSED, fields))
        else:
            fields = (robot.height, robot.width, 'rgb8', 0, 3 * robot.width, picture.ravel())
            made.append(_encoder(IMAGE, fields))
    return made


def _encoder(kind: str, fields: tuple[Any, ...]) -> Callable[[int], bytes]:
    def encode(stamp_ns: int) -> bytes:
        return bytes(STORE.serialize_cdr(make(kind, header(stamp_ns), *fields), kind))

    return encode


def joint_state(robot: Robot, stamp_ns: int) -> bytes:
    time_s = (stamp_ns - START_NS) / SECOND
    position = np.sin(time_s * (0.5 + 0.1 * np.arange(len(robot.joints))))
    none = np.array([])
    message = make(JOINT_STATE, header(stamp_ns), list(robot.joints), position, none, none)
    return bytes(STORE.serialize_cdr(message, JOINT_STATE))


def recording(robot: Robot, *, seconds: float) -> Iterator[tuple[str, int, bytes]]:
    """(topic, log time, data) in order; each message is recorded 5 ms after it was taken."""
    suffix = '/compressed' if robot.jpeg else ''
    cameras = [
        (f'/{name}/image_raw{suffix}', encoders(robot, seed=seed))
        for seed, name in enumerate(('front', 'wrist'))
    ]
    pictured = jointed = 0
    while jointed < seconds * JOINT_HZ:
        taken_ns = START_NS + jointed * SECOND // JOINT_HZ
        while START_NS + pictured * SECOND // CAMERA_HZ <= taken_ns:
            stamp_ns = START_NS + pictured * SECOND // CAMERA_HZ
            for topic, frames in cameras:
                yield topic, stamp_ns + 5_000_000, frames[pictured % FRAMES](stamp_ns)
            pictured += 1
        yield '/joint_states', taken_ns + 5_000_000, joint_state(robot, taken_ns)
        jointed += 1


def write_bag(path: Path, robot: Robot, *, seconds: float, compression: str) -> None:
    kinds = {'/joint_states': JOINT_STATE}
    channels: dict[str, int] = {}
    with McapWriter(path, compression=compression, level=1) as writer:
        for topic, log_ns, data in recording(robot, seconds=seconds):
            if topic not in channels:
                kind = kinds.get(topic, COMPRESSED if robot.jpeg else IMAGE)
                text = STORE.generate_msgdef(kind, ros_version=2)[0]
                channels[topic] = writer.add_channel(topic, writer.add_schema(kind, text=text))
            writer.write(channels[topic], log_ns, data)


def replay_alone(bag: Path, robot: Path, policy: Path, *, device: str, seconds: float) -> float:
    """Times real time of everything but the inferences."""
    values = node_values({'checkpoint': str(policy), 'robot': str(robot)})
    arm = load_arm(
        ArmSpec(backend='eager', device=device), values=values, contract=load_contract(robot)
    )
    with open_bag(bag) as opened:
        start_s = time.perf_counter()
        replay = Replay(
            opened, arm.loaded, ReplayOptions(), pacing=pacing_config(values, arm.loaded)
        )
        chunks = sum(1 for _ in replay)
        passed_s = time.perf_counter() - start_s
    arm.close()
    assert chunks > 1, 'the bag gave no observations'
    return seconds / passed_s


def robot_of(policy: Path, *, jpeg: bool, rate_hz: float) -> Robot:
    config = describe_checkpoint(policy).config
    _, height, width = next(iter(config.image_features.values())).shape
    size = config.action_feature.shape[0]
    names = tuple(f'joint_{number}' for number in range(1, size + 1))
    return Robot(height=height, width=width, joints=names, jpeg=jpeg, rate_hz=rate_hz)


def measure(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    policy = write_random_policy(args.policy, folder / 'policy')
    robot = robot_of(policy, jpeg=args.images == 'jpeg', rate_hz=args.policy_hz)
    contract_file = folder / 'bench.yaml'
    contract_file.write_text(yaml.safe_dump(contract(robot)), encoding='utf-8')
    bag = folder / 'bag.mcap'
    write_bag(bag, robot, seconds=args.seconds, compression=args.compression)
    alone = replay_alone(bag, contract_file, policy, device=args.device, seconds=args.seconds)
    result = run_parity(
        ParityOptions(
            bag=bag,
            robot=str(contract_file),
            checkpoint=policy,
            reference=ArmSpec.parse(f'device={args.device}', base=REFERENCE),
            candidates=(ArmSpec(device=args.device, precision=args.precision),),
            replay=ReplayOptions(rate_hz=args.rate_hz),
            apart=False if args.in_process else None,
        )
    )
    facts = result.provenance
    return {
        'policy': args.policy,
        'bag': {
            'seconds': args.seconds,
            'images': f'{args.images} {robot.width}x{robot.height}, two at {CAMERA_HZ} Hz',
            'bytes': bag.stat().st_size,
            'compression': args.compression or 'none',
        },
        'chunks': len(result.records),
        'band': result.band,
        'replay_alone_times_real_time': alone,
        **{key: facts['measured'][key] for key in ('times_real_time', 'seconds', 'inference')},
        'environment': facts['environment'],
    }


def show(result: dict[str, Any]) -> None:
    bag, environment = result['bag'], result['environment']
    print(f'{environment["device_name"]}, torch {environment["torch"]}, {environment["date"]}')
    print(
        f'{bag["seconds"]:g} s, {bag["images"]}, {bag["bytes"] / 1e6:.0f} MB '
        f'({bag["compression"]}), policy {result["policy"]}, {result["chunks"]} chunks'
    )
    for label, times in result['inference'].items():
        print(
            f'{label:<32} p50 {1e3 * times["p50_s"]:8.2f} ms  p99 {1e3 * times["p99_s"]:8.2f} ms'
        )
    print(f'replay without inference {result["replay_alone_times_real_time"]:8.1f} x real time')
    print(f'parity                   {result["times_real_time"]:8.1f} x real time')
    print(f'verdict: {result["band"]}')


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or '').split('\n\n')[0])
    parser.add_argument('--policy', default='act-480x640x2', choices=list(RANDOM_POLICIES))
    parser.add_argument('--seconds', type=float, default=60.0, help='of the bag (default 60)')
    parser.add_argument('--images', default='raw', choices=('raw', 'jpeg'))
    parser.add_argument('--compression', default='', choices=('', 'zstd', 'lz4'))
    parser.add_argument('--device', default='auto')
    parser.add_argument('--precision', default='fp32')
    parser.add_argument('--policy-hz', type=float, default=50.0, help='rows of a chunk per second')
    parser.add_argument('--rate-hz', type=float, help='infer this often instead')
    parser.add_argument(
        '--in-process', action='store_true', help='replay on a thread, on a GPU too'
    )
    parser.add_argument('--folder', type=Path, help='where the bag is made (default: temporary)')
    parser.add_argument('--json', type=Path, help='also write the result here')
    return parser.parse_args(arguments)


def main() -> int:
    args = parse()
    with tempfile.TemporaryDirectory(prefix='sparkrt_parity_', dir=args.folder) as folder:
        result = measure(args, Path(folder))
    show(result)
    if args.json:
        args.json.write_text(json.dumps(result, indent=2) + '\n', encoding='utf-8')
    return 0


if __name__ == '__main__':
    sys.exit(main())
