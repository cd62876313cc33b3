"""Chunks played offline as the streamer plays them, and compared with what a bag recorded."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from bag_factory import START_NS, write_mcap
from contract_samples import GOOD_CONTRACT, write_contract
from parity_bags import JOINTS, command, drive, write_robot
from parity_fakes import ToyLoader, ToyPolicy, make_replay

from sparkrt_ros.convert.contract import load_contract
from sparkrt_ros.nodes.streamer_core import Pose
from sparkrt_ros.replay.arms import ArmSpec
from sparkrt_ros.replay.bag import open_bag
from sparkrt_ros.replay.commands import CommandScript, Playing, ScriptWriter, offline_commands
from sparkrt_ros.replay.offline import ReplayOptions
from sparkrt_ros.replay.recorded import RecordedCommands, at_recorded_times
from sparkrt_ros.replay.result import CommandTrack, ParityResult
from sparkrt_ros.replay.run import ParityOptions, run_parity
from sparkrt_ros.runtime.errors import ConfigError
from sparkrt_ros.runtime.types import ActionChunk

QUEUE = Playing()
AT_ONCE = Playing(blend_s=0.0, blend_in_s=0.0)


@pytest.fixture
def robot(tmp_path: Path) -> Path:
    return write_robot(tmp_path)


def script(*, ticks: int, chunk_ticks: list[int], pose: float = 0.0) -> CommandScript:
    """Ticks of 20 ms with one pose, good for ever, from the first on."""
    writer = ScriptWriter(len(JOINTS))
    writer.pose(Pose(values=np.full(len(JOINTS), pose), fresh_until_ns=2**62))
    arrivals = iter([*chunk_ticks, -1])
    due = next(arrivals)
    for tick in range(ticks):
        while due == tick:
            writer.chunk()
            due = next(arrivals)
        writer.tick(START_NS + tick * 20_000_000)
    return writer.script()


def chunk(rows: Any, *, tick: int, number: int = 1, dt_s: float = 0.1) -> ActionChunk:
    values = np.repeat(np.asarray(rows, dtype=np.float32)[:, None], len(JOINTS), axis=1)
    return ActionChunk(
        actions=values,
        joint_names=JOINTS,
        observation_stamp_ns=START_NS + tick * 20_000_000,
        dt_s=dt_s,
        epoch=1,
        chunk_id=number,
    )


def test_nothing_is_sent_before_a_chunk_and_its_rows_are_interpolated(robot: Path) -> None:
    track = offline_commands(
        load_contract(robot),
        script(ticks=30, chunk_ticks=[5]),
        [chunk([0.0, 0.5, 1.0], tick=5)],
        playing=AT_ONCE,
        label='x',
    )
    assert track.label == 'x'
    assert track.times_ns.tolist() == [START_NS + k * 20_000_000 for k in range(30)]
    assert np.isnan(track.commands[:5]).all()
    assert track.commands[5:15, 0] == pytest.approx([0.1 * k for k in range(10)])
    assert (track.commands[15:20] == 1.0).all()


def test_the_guard_limits_what_is_sent(tmp_path: Path) -> None:
    joints = [{'name': n, 'unit': 'rad', 'limits': [-3, 3], 'max_velocity': 1.0} for n in JOINTS]
    contract = load_contract(write_robot(tmp_path, joints=joints))
    track = offline_commands(
        contract,
        script(ticks=10, chunk_ticks=[0], pose=0.25),
        [chunk([1.0, 1.0], tick=0)],
        playing=AT_ONCE,
    )
    assert track.commands[:5, 0] == pytest.approx([0.27, 0.29, 0.31, 0.33, 0.35])


def test_ensembling_plays_the_mean_of_overlapping_chunks(robot: Path) -> None:
    chunks = [chunk([0.0] * 8, tick=0), chunk([1.0] * 8, tick=5, number=2)]
    plan = script(ticks=12, chunk_ticks=[0, 5])
    played = {
        mode: offline_commands(
            load_contract(robot),
            plan,
            chunks,
            playing=replace(AT_ONCE, mode=mode, temporal_ensemble_coeff=0.0),
        ).commands[10, 0]
        for mode in ('queue', 'ensemble')
    }
    assert played == {'queue': 1.0, 'ensemble': pytest.approx(0.5)}


def test_a_chunk_that_never_arrived_is_never_played(robot: Path) -> None:
    plan = script(ticks=10, chunk_ticks=[0])
    late = CommandScript(**{**vars(plan), 'chunk_ticks': np.array([10])})
    track = offline_commands(load_contract(robot), late, [chunk([1.0], tick=0)], playing=QUEUE)
    assert np.isnan(track.commands).all()


def test_the_same_chunks_give_the_same_commands_as_during_the_replay(
    robot: Path, tmp_path: Path
) -> None:
    """The script repeats what the streamer of the replay went through."""
    write_mcap(tmp_path / 'bag.mcap', drive(seconds=3.0))
    with open_bag(tmp_path / 'bag.mcap') as bag:
        replay = make_replay(bag, robot)
        sent: list[np.ndarray] = []
        send = replay._streamer.send

        def note(values: np.ndarray, *, now_ns: int) -> None:
            send(values, now_ns=now_ns)
            sent.append(values.copy())

        replay._streamer.send = note  # type: ignore[method-assign]
        observed = list(replay)
    track = offline_commands(
        load_contract(robot), replay.script.script(), [o.chunk for o in observed], playing=QUEUE
    )
    told = track.commands[~np.isnan(track.commands).any(axis=1)]
    assert len(told) > 100
    assert told.tobytes() == np.stack(sent).tobytes()


# What a bag recorded


def recorded(contract: Any, output: str, *messages: tuple[int, Any]) -> RecordedCommands:
    collector = RecordedCommands(contract)
    for now_ns, message in messages:
        collector.take(output, SimpleNamespace(message=message), now_ns)  # type: ignore[arg-type]
    return collector


def vector(**values: float) -> SimpleNamespace:
    return SimpleNamespace(**{'x': 0.0, 'y': 0.0, 'z': 0.0, **values})


@pytest.fixture
def mobile(tmp_path: Path) -> Any:
    """Action x (base), b, a; a trajectory for a and b, a twist for x."""
    return load_contract(write_contract(tmp_path, GOOD_CONTRACT))


def test_a_trajectory_counts_by_its_first_point_and_by_name(mobile: Any) -> None:
    point = SimpleNamespace(positions=[0.7, 0.3])
    later = SimpleNamespace(positions=[9.0, 9.0])
    names = next(g.message_names for g in mobile.outputs if g.name == 'arm')
    message = SimpleNamespace(joint_names=list(reversed(names)), points=[point, later])
    row = recorded(mobile, 'arm', (1, message)).recording().track.commands[0]
    by_name = dict(zip(mobile.action, row, strict=True))
    assert np.isnan(by_name['x'])
    assert (by_name['a'], by_name['b']) == (0.3, 0.7)


def test_a_twist_counts_by_its_components(mobile: Any) -> None:
    message = SimpleNamespace(linear=vector(x=0.4), angular=vector())
    row = recorded(mobile, 'base', (1, message)).recording().track.commands[0]
    assert dict(zip(mobile.action, row, strict=True))['x'] == 0.4


def test_outputs_of_one_tick_make_one_row(mobile: Any) -> None:
    names = list(next(g for g in mobile.outputs if g.name == 'arm').message_names)
    collector = RecordedCommands(mobile)
    twist = SimpleNamespace(message=SimpleNamespace(linear=vector(x=0.4), angular=vector()))
    for tick in range(3):
        points = [SimpleNamespace(positions=[float(tick)] * 2)]
        arm = SimpleNamespace(message=SimpleNamespace(joint_names=names, points=points))
        collector.take('arm', arm, tick * 20_000_000)  # type: ignore[arg-type]
        collector.take('base', twist, tick * 20_000_000 + 300_000)  # type: ignore[arg-type]
    track = collector.recording().track
    assert track.times_ns.tolist() == [0, 20_000_000, 40_000_000]
    assert not np.isnan(track.commands).any()


def test_malformed_commands_are_left_out_and_counted(robot: Path) -> None:
    contract = load_contract(robot)
    bad = [[1.0] * 4, [1.0] * 4 + [float('nan')], []]
    messages = [(k, SimpleNamespace(data=data)) for k, data in enumerate(bad)]
    collector = recorded(contract, 'arm', *messages, (9, SimpleNamespace(data=[1.0] * 5)))
    assert len(collector.recording().track.times_ns) == 1
    count, text = collector.malformed['arm']
    assert count == 3
    assert '4 values' in text


def test_commands_between_ticks_are_compared_with_both_neighbours(robot: Path) -> None:
    collector = RecordedCommands(load_contract(robot))
    times_ns = [START_NS + k * 20_000_000 for k in range(4)]
    commands = np.repeat(np.array([[0.0], [1.0], [np.nan], [3.0]]), len(JOINTS), axis=1)
    for ticks, now_ns in ((0, 5), (1, times_ns[0] + 5_000_000), (2, times_ns[1] + 5_000_000)):
        collector.ticks = ticks
        message = SimpleNamespace(message=SimpleNamespace(data=[0.0] * 5))
        collector.take('arm', message, now_ns)  # type: ignore[arg-type]
    track = CommandTrack(label='x', times_ns=np.array(times_ns, dtype=np.int64), commands=commands)
    found = at_recorded_times(track, collector.recording())
    assert found[1] == pytest.approx(np.full(5, 0.25))
    assert np.isnan(found[[0, 2]]).all()


# Whole runs


class Recording:
    """A bag that holds what the policy itself would have commanded, a little changed."""

    def __init__(self, folder: Path, robot: Path) -> None:
        self.folder, self.robot = folder, robot
        self.messages = drive(seconds=4.0)
        write_mcap(folder / 'plain.mcap', self.messages)
        with open_bag(folder / 'plain.mcap') as bag:
            replay = make_replay(bag, robot)
            policy = ToyPolicy()
            chunks = []
            for o in replay:
                _, rows = policy.predict_both(o.observation)
                chunks.append(ActionChunk(**{**vars(o.chunk), 'actions': rows.astype(np.float32)}))
        self.track = offline_commands(
            load_contract(robot), replay.script.script(), chunks, playing=QUEUE
        )

    def run(self, change: Any, **replay: Any) -> ParityResult:
        """change: from a command (5,) to the recorded one."""
        sent = ~np.isnan(self.track.commands).any(axis=1)
        times_ns = self.track.times_ns[sent]
        commands = [
            command(int(t) + 200_000, change(row))
            for t, row in zip(times_ns, self.track.commands[sent], strict=True)
        ]
        path = self.folder / f'bag{len(list(self.folder.glob("*.mcap")))}.mcap'
        write_mcap(path, sorted([*self.messages, *commands], key=lambda m: m.log_ns))
        options = ParityOptions(
            bag=path,
            robot=str(self.robot),
            checkpoint=Path('/toy'),
            candidates=(ArmSpec(backend='fused'),),
            against_recorded=True,
            replay=ReplayOptions(**replay),
        )
        return run_parity(options, load=ToyLoader(ToyPolicy(), ToyPolicy()))


@pytest.fixture
def recording(tmp_path: Path, robot: Path) -> Recording:
    return Recording(tmp_path, robot)


def test_ones_own_commands_pass(recording: Recording) -> None:
    result = recording.run(lambda row: row)
    against = [c for c in result.comparisons if c.of_commands]
    assert [(c.candidate, c.reference, c.band) for c in against] == [
        ('eager, fp32', 'recorded', 'pass'),
        ('fused, fp32', 'recorded', 'pass'),
    ]
    # The recording is 0.2 ms after each tick: what the arm moves meanwhile is all there is.
    assert against[0].spaces[0].overall.max_abs < 0.01
    assert [track.label for track in result.commands] == [
        'eager, fp32',
        'fused, fp32',
        'recorded',
    ]
    assert len(against[0].spaces[0].chunks) == len(result.records)


def test_chunks_at_a_rate_of_ones_own_are_played_too(recording: Recording) -> None:
    result = recording.run(lambda row: row, rate_hz=5.0)
    assert len(result.records) == pytest.approx(20, abs=1)
    first = next(c for c in result.comparisons if c.of_commands)
    assert first.band in ('pass', 'warn')
    assert first.spaces[0].overall.cosine > 0.9


@pytest.mark.parametrize(
    'change',
    [
        lambda row: row[[1, 0, 2, 3, 4]],
        lambda row: -row,
        lambda row: row + np.array([0, 0, 2.0, 0, 0]),
        lambda row: np.degrees(row),
    ],
    ids=['order', 'sign', 'offset', 'unit'],
)
def test_commands_of_another_order_sign_or_unit_fail(recording: Recording, change: Any) -> None:
    result = recording.run(change)
    assert result.band == 'fail'
    first = next(c for c in result.comparisons if c.of_commands)
    assert 'of the recorded motion' in first.reasons[0]
    assert set(result.worst_frames[first.candidate]) == {
        'observation.images.front',
        'observation.images.wrist',
    }


def test_a_bag_without_the_commands_says_so(recording: Recording) -> None:
    options = ParityOptions(
        bag=recording.folder / 'plain.mcap',
        robot=str(recording.robot),
        checkpoint=Path('/toy'),
        against_recorded=True,
    )
    with pytest.raises(ConfigError, match='no /commands'):
        run_parity(options, load=ToyLoader(ToyPolicy(), ToyPolicy()))


def test_commands_from_before_the_policy_had_anything_to_say_fail(recording: Recording) -> None:
    early = [command(START_NS + k * 1_000_000, [0.0] * 5) for k in range(5)]
    path = recording.folder / 'early.mcap'
    write_mcap(path, sorted([*early, *recording.messages], key=lambda m: m.log_ns))
    result = run_parity(
        ParityOptions(
            bag=path, robot=str(recording.robot), checkpoint=Path('/toy'), against_recorded=True
        ),
        load=ToyLoader(ToyPolicy(), ToyPolicy()),
    )
    first = next(c for c in result.comparisons if c.of_commands)
    assert first.band == 'fail'
    assert 'no recorded command' in first.reasons[0]
