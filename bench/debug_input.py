"""What ``~/debug/input`` costs the policy node: alone, and with a subscriber in another process.

python bench/debug_input.py --pictures 300

Two 640x480 cameras. The inference thread only asks whether somebody looks; the ROS thread, which
stores what arrives, copies and publishes.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from types import SimpleNamespace

import numpy as np
import rclpy
from rclpy.node import Node
from ros_bench import Processes, machine, prepare_environment
from sensor_msgs.msg import Image

from sparkrt_ros.nodes import qos
from sparkrt_ros.nodes.debug_images import DebugImages

CAMERAS = ('front', 'wrist')
SIZE = (480, 640, 3)
MATCH_S = 20.0
# As fast as inferences follow each other on a fast device.
PERIOD_S = 0.02


class Reading:
    """What the inference thread leaves behind: pictures, and the messages they were made of."""

    def __init__(self, images: dict[str, np.ndarray]) -> None:
        sample = SimpleNamespace(payload=Image(), stamp_ns=1)
        self.observation = SimpleNamespace(images=images)
        self.snapshot = SimpleNamespace(samples=dict.fromkeys(CAMERAS, sample))

    def again(self) -> Reading:
        """The same pictures of new messages."""
        return Reading(self.observation.images)


def times_us(act: Callable[[], None], count: int, *, period_s: float) -> list[float]:
    found = []
    for _ in range(count):
        start_s = time.perf_counter()
        act()
        found.append((time.perf_counter() - start_s) * 1e6)
        time.sleep(period_s)
    return found


def line(name: str, times: Sequence[float]) -> str:
    p50, p99 = np.percentile(times, (50, 99))
    return f'{name:<46} {p50:9.1f} {p99:9.1f} {max(times):9.1f}'


def measure(node: Node, processes: Processes, count: int) -> None:
    random = np.random.default_rng(0)
    newest = [Reading({n: random.integers(0, 256, SIZE, dtype=np.uint8) for n in CAMERAS})]
    debug = DebugImages(node, lambda: newest[0])
    debug.follow({name: name for name in CAMERAS})

    def show() -> None:
        newest[0] = newest[0].again()
        debug.publish()

    print(f'{"[µs]":<46} {"p50":>9} {"p99":>9} {"max":>9}')
    alone = times_us(show, count, period_s=0.001)
    print(line('ROS thread, nobody subscribes', alone))
    asked = times_us(debug.inferred, count, period_s=0.0)
    print(line('inference thread, nobody subscribes', asked))
    processes.start('viewer', (__file__, '--view'))
    limit_s = time.monotonic() + MATCH_S
    topics = [f'{node.get_fully_qualified_name()}/debug/input/{name}' for name in CAMERAS]
    while sum(node.count_subscribers(topic) for topic in topics) < len(CAMERAS):
        if time.monotonic() > limit_s:
            raise SystemExit(f'no subscriber in {MATCH_S} s')
        time.sleep(0.05)
    shown = times_us(show, count, period_s=PERIOD_S)
    print(line('ROS thread, both pictures to a subscriber', shown))
    print(line('inference thread, somebody subscribes', times_us(debug.inferred, 100, period_s=0)))


def view() -> None:
    """The process that looks."""
    node = rclpy.create_node('viewer')
    for name in CAMERAS:
        node.create_subscription(Image, f'/shower/debug/input/{name}', lambda _: None, qos.DEBUG)
    rclpy.spin(node)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--pictures', type=int, default=300)
    parser.add_argument('--view', action='store_true', help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.view:
        rclpy.init()
        view()
        return 0
    prepare_environment('debug_input')
    rclpy.init()
    print(', '.join(f'{key} {value}' for key, value in machine().items()))
    with Processes() as processes:
        measure(rclpy.create_node('shower'), processes, options.pictures)
    return 0


if __name__ == '__main__':
    sys.exit(main())
