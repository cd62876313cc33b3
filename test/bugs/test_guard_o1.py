"""O1 and its kind, without ROS: whatever a policy yields, in every mode, what leaves is sound."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkrt_ros.convert.contract import ActionLimits
from sparkrt_ros.nodes.guard import Guard
from sparkrt_ros.nodes.streamer_core import Options, Pose, StreamerCore
from sparkrt_ros.nodes.streamer_values import MadeUpTimeOutlet
from sparkrt_ros.runtime.chunking.timeline import MODES, Timeline
from sparkrt_ros.runtime.types import ActionChunk

NAMES = tuple(f'joint_{number}' for number in range(6))
PERIOD_NS = 10_000_000
DT_S = 0.05
LOW, HIGH, MAX_RATE = -1.5, 1.5, 2.0


class Robot(MadeUpTimeOutlet):
    """A streamer core whose commands are kept."""

    def __init__(self, mode: str, *, blend_s: float = 0.1, acceleration: float = 30.0) -> None:
        size = len(NAMES)
        self.sent: list[np.ndarray] = []
        self.now_ns = 1_000_000_000
        self.chunk_id = 0
        self.core = StreamerCore(
            timeline=Timeline(joint_names=NAMES),
            guard=Guard(
                names=NAMES,
                limits=ActionLimits(
                    low=np.full(size, LOW),
                    high=np.full(size, HIGH),
                    max_rate=np.full(size, MAX_RATE),
                    max_rate_change=np.full(size, acceleration),
                ),
                velocity_columns=np.zeros(size, dtype=np.bool_),
            ),
            velocity_columns=np.zeros(size, dtype=np.bool_),
            period_s=PERIOD_NS / 1e9,
            outlet=self,
            notify=lambda: None,
        )
        self.core.set_options(
            Options(
                mode=mode,
                temporal_ensemble_coeff=0.01,
                hold_s=0.5,
                velocity_scale=1.0,
                start_max_error=0.0,
                interpolation='cubic',
                blend_s=blend_s,
                blend_in_s=0.2,
            )
        )
        self.core.pose = Pose(values=np.zeros(size), fresh_until_ns=2**62)
        self.core.activate(self.now_ns)

    def send(self, command: np.ndarray, *, now_ns: int) -> None:
        self.sent.append(command.copy())
        # It follows: after a stop the next motion begins where the last one ended.
        self.core.pose = Pose(values=command.copy(), fresh_until_ns=2**62)

    def stop_velocities(self, command: np.ndarray, *, now_ns: int) -> None:
        raise AssertionError('this robot has no velocities')

    def offer(self, rows: np.ndarray, *, names: tuple[str, ...] = NAMES, dt_s: float = DT_S):
        self.chunk_id += 1
        self.core.offer(
            ActionChunk(
                actions=rows,
                joint_names=names,
                observation_stamp_ns=self.now_ns,
                dt_s=dt_s,
                chunk_id=self.chunk_id,
            ),
            session_id=1,
        )

    def tick(self, count: int = 1) -> None:
        for _ in range(count):
            self.core.tick(self.now_ns)
            self.now_ns += PERIOD_NS

    def assert_sound(self) -> None:
        sent = np.array(self.sent).reshape(-1, len(NAMES))
        assert np.isfinite(sent).all()
        assert sent.min(initial=0.0) >= LOW
        assert sent.max(initial=0.0) <= HIGH
        steps = np.abs(np.diff(sent, axis=0, prepend=np.zeros((1, len(NAMES)))))
        assert steps.max(initial=0.0) <= MAX_RATE * PERIOD_NS / 1e9 * (1 + 1e-9)


def good(rows: int = 20) -> np.ndarray:
    return np.full((rows, len(NAMES)), 0.3)


def with_value(value: float) -> np.ndarray:
    rows = good()
    rows[7, 3] = value
    return rows


@pytest.mark.parametrize('mode', MODES)
@pytest.mark.parametrize(
    ('bad', 'kind'),
    [
        ({'rows': with_value(math.nan)}, 'non_finite'),
        ({'rows': with_value(-math.inf)}, 'non_finite'),
        ({'rows': np.zeros((20, 7))}, 'size'),
        ({'rows': np.zeros((0, 6))}, 'size'),
        ({'rows': np.zeros(6)}, 'size'),
        ({'rows': good(), 'names': (*NAMES[1:], NAMES[0])}, 'names'),
        ({'rows': good(), 'dt_s': 0.0}, 'dt'),
        ({'rows': good(), 'dt_s': math.nan}, 'dt'),
    ],
)
def test_a_bad_chunk_is_counted_by_its_kind_and_the_good_one_plays_on(mode, bad, kind):
    robot = Robot(mode)
    robot.offer(good(40))
    robot.tick(60)
    robot.offer(**bad)
    robot.tick(20)
    assert robot.core.rejected == {kind: 1}
    assert len(robot.sent) == 80
    assert robot.sent[-1].tolist() == [0.3] * 6
    robot.assert_sound()


@pytest.mark.parametrize('mode', MODES)
@pytest.mark.parametrize('value', [1e3, -1e9, 1e300, -1.7e308])
def test_values_far_out_of_range_end_at_the_limits(mode, value):
    robot = Robot(mode)
    robot.offer(good())
    robot.tick(30)
    with np.errstate(over='ignore', invalid='ignore'):
        robot.offer(np.full((30, len(NAMES)), value))
        robot.tick(100)
    robot.assert_sound()
    counts = robot.core.interventions
    assert counts['position'] + counts['refused'] > 0


@pytest.mark.parametrize('mode', MODES)
@settings(deadline=None, max_examples=25)
@given(data=st.data())
def test_what_leaves_is_sound_whatever_comes(mode, data):
    robot = Robot(mode, blend_s=data.draw(st.sampled_from([0.0, 0.1])))
    value = st.floats(allow_nan=True, allow_infinity=True, width=32)
    for _ in range(data.draw(st.integers(1, 6))):
        width = data.draw(st.sampled_from([6, 6, 6, 5]))
        rows = data.draw(st.lists(st.lists(value, min_size=width, max_size=width), max_size=4))
        with np.errstate(over='ignore', invalid='ignore'):
            robot.offer(np.array(rows, dtype=np.float64).reshape(len(rows), width))
            robot.tick(data.draw(st.integers(1, 20)))
        robot.core.set_options(
            Options(
                mode=data.draw(st.sampled_from(MODES)),
                temporal_ensemble_coeff=0.1,
                hold_s=0.1,
                velocity_scale=1.0,
                start_max_error=0.0,
                blend_s=0.2,
                blend_in_s=0.1,
            )
        )
    robot.assert_sound()
