"""From messages to observations: dated, merged by name, decoded only when used."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from message_factory import message_kind

from sparkrt_ros.convert.contract_types import (
    CameraSpec,
    JointSpec,
    OutputGroup,
    RobotContract,
    StateEntry,
    StateStream,
    StreamTiming,
)
from sparkrt_ros.nodes.observation_intake import ObservationIntake, with_zero_stamps
from sparkrt_ros.nodes.observation_reader import ObservationReader
from sparkrt_ros.runtime.errors import ObservationError, StaleObservation
from sparkrt_ros.runtime.types import Capabilities

S = 1_000_000_000
T0 = 1_000 * S
KEY = 'observation.images.front'
PLAIN = message_kind('plain')


def ns(seconds):
    return T0 + round(seconds * S)


def contract(*, camera=None, streams=None):
    timing = StreamTiming(max_age_s=0.2)
    joints = ('pan', 'grip')
    return RobotContract(
        name='two',
        policy_rate_hz=20.0,
        control_rate_hz=100.0,
        hold_s=1.0,
        max_skew_s=0.1,
        joints=tuple(JointSpec(name=j, unit='deg', min=-3.0, max=3.0) for j in joints),
        action=joints,
        outputs=(
            OutputGroup(
                name='all', topic='c', type='joint_state', joints=joints, message_names=joints
            ),
        ),
        cameras=(CameraSpec(name='front', key=KEY, topic='front', type='image', timing=timing),),
        state=tuple(StateEntry(joint=j) for j in joints),
        state_streams=streams
        or (StateStream(name='joints', topic='joints', type='joint_state', timing=timing),),
    )


CAPABILITIES = Capabilities(
    model_type='act',
    image_shapes={KEY: (3, 4, 6)},
    state_size=2,
    environment_state_size=0,
    action_size=2,
    chunk_size=8,
    n_action_steps=8,
)


class Setup:
    def __init__(self, robot=None, capabilities=CAPABILITIES, **options):
        self.robot = robot or contract()
        self.warnings = []
        self.intake = ObservationIntake(
            self.robot,
            cameras=self.robot.cameras,
            with_state=True,
            max_skew_s=self.robot.max_skew_s,
            warn=lambda _, text: self.warnings.append(text),
            **options,
        )
        self.reader = ObservationReader(
            self.intake, self.robot, capabilities, warn=lambda _, text: self.warnings.append(text)
        )

    def image(self, at, *, camera='front', stamp=None, value=7, size=(4, 6)):
        message = PLAIN.image(np.full((*size, 3), value, np.uint8), 'rgb8')
        message.header = header(ns(at) if stamp is None else stamp)
        return self.intake.image(camera, message, now_ns=ns(at))

    def joints(self, at, names=('pan', 'grip'), values=(1.0, 0.5), *, stream='joints', stamp=None):
        stamp_ns = ns(at) if stamp is None else stamp
        message = PLAIN.joint_state(names, values, stamp_ns=stamp_ns)
        return self.intake.joints(stream, message, now_ns=ns(at))

    def read(self, at):
        return self.reader.read(ns(at), task='lift')


def header(stamp_ns):
    seconds, nanoseconds = divmod(stamp_ns, S)
    return SimpleNamespace(
        stamp=SimpleNamespace(sec=seconds, nanosec=nanoseconds), frame_id='camera'
    )


def test_an_observation_is_in_the_policys_units_order_and_keys():
    setup = Setup()
    assert setup.image(0.0)
    assert setup.joints(0.01, ('grip', 'other', 'pan'), (0.5, 9.0, 1.0), stamp=ns(0.0))
    observation = setup.read(0.02).observation
    np.testing.assert_array_equal(observation.images[KEY], np.full((4, 6, 3), 7, np.uint8))
    np.testing.assert_allclose(observation.state, np.degrees([1.0, 0.5]), rtol=1e-6)
    assert observation.state.dtype == np.float32
    assert observation.task == 'lift'
    assert observation.stamp_ns == ns(0.0)


def test_only_pictures_that_are_used_are_decoded():
    setup = Setup()
    for tick in range(10):
        setup.joints(tick * 0.01)
        setup.image(tick * 0.01, size=(5, 5) if tick < 9 else (4, 6))
    setup.read(0.09)
    setup.read(0.09)
    assert setup.reader.bad_messages == 0
    assert setup.warnings == []


def test_a_picture_that_cannot_be_decoded_gives_way_to_the_one_before():
    setup = Setup()
    setup.joints(0.0)
    setup.image(0.0, value=1)
    setup.joints(0.05)
    setup.image(0.05, size=(5, 5))
    observation = setup.read(0.06).observation
    assert observation.images[KEY][0, 0, 0] == 1
    assert setup.reader.bad_messages == 1
    assert 'front' in setup.warnings[0]
    assert '5x5' in setup.warnings[0]
    setup.joints(0.25)
    with pytest.raises(StaleObservation, match=r'^front: found 0\.250 s old'):
        setup.read(0.25)


def two_cameras():
    """A contract and capabilities with a camera 'wrist' beside 'front'."""
    robot, key = contract(), 'observation.images.wrist'
    wrist = replace(robot.cameras[0], name='wrist', key=key, topic='wrist')
    shapes = {**CAPABILITIES.image_shapes, key: (3, 4, 6)}
    return (
        replace(robot, cameras=(*robot.cameras, wrist)),
        replace(CAPABILITIES, image_shapes=shapes),
    )


@pytest.mark.parametrize('late', ['front', 'wrist'], ids='{}_is_last'.format)
def test_a_camera_whose_pictures_are_all_damaged_is_named_with_the_reason(late):
    setup = Setup(*two_cameras())
    early = {'front': 'wrist', 'wrist': 'front'}[late]
    found = []
    for tick in range(20):
        at, size = tick / 30, (5, 5) if tick else (4, 6)
        setup.joints(at)
        for camera, behind in ((early, 0.0), (late, 0.01)):
            setup.image(at + behind, camera=camera, size=size if camera == 'front' else (4, 6))
            try:
                setup.read(at + behind)
            except ObservationError as error:
                found.append((at, str(error)))
    said = [text for at, text in found if at > 0.15]
    assert len(said) >= 20
    for text in said:
        assert text.startswith('front')
        assert '5x5' in text
    setup.image(0.7, size=(4, 6))
    setup.image(0.7, camera='wrist')
    setup.joints(0.7)
    setup.read(0.7)
    setup.joints(1.0)
    setup.image(1.0)
    with pytest.raises(StaleObservation, match=r'^wrist: ') as error:
        setup.read(1.0)
    assert 'refused' not in str(error.value)


def test_zero_stamps_are_refused_with_a_warning():
    setup = Setup()
    assert not setup.image(0.0, stamp=0)
    assert setup.intake.bad_messages == 1
    assert 'front: found a header stamp of zero' in setup.warnings[0]


def test_zero_stamps_dated_by_arrival_are_said():
    setup = Setup(with_zero_stamps(contract(), 'receive'))
    assert setup.image(0.0, stamp=0)
    assert setup.joints(0.0, stamp=0)
    assert setup.read(0.01).snapshot.ages_s == pytest.approx({'front': 0.01, 'state': 0.01})
    assert setup.warnings[0] == 'front: header stamps are zero; dated by arrival'


def test_the_contracts_own_choice_for_zero_stamps_can_be_kept():
    robot = contract()
    assert with_zero_stamps(robot, 'contract') is robot
    assert {c.timing.zero_stamp for c in with_zero_stamps(robot, 'receive').cameras} == {'receive'}


@pytest.mark.parametrize('what', ['image', 'joints'])
def test_stamps_ahead_of_the_clock_are_refused_and_said(what):
    setup = Setup()
    assert not getattr(setup, what)(0.0, stamp=ns(5.0))
    assert '5.000 s ahead' in setup.warnings[0]
    assert setup.intake.buffer.counters(ns(0.0))['state' if what == 'joints' else 'front'].dropped


def test_joints_of_two_publishers_are_one_state():
    timing = StreamTiming(max_age_s=0.2)
    streams = (
        StateStream(name='arm', topic='arm', type='joint_state', timing=timing),
        StateStream(name='hand', topic='hand', type='joint_state', timing=timing),
    )
    setup = Setup(contract(streams=streams))
    assert not setup.joints(0.0, ('pan',), (1.0,), stream='arm')
    setup.image(0.01)
    with pytest.raises(StaleObservation, match='joints grip: found no value yet; received: pan'):
        setup.read(0.01)
    assert setup.joints(0.01, ('grip',), (0.5,), stream='hand')
    setup.image(0.02)
    np.testing.assert_allclose(setup.read(0.02).observation.state, np.degrees([1.0, 0.5]))
    assert not setup.joints(0.5, ('grip',), (0.6,), stream='hand')
    setup.image(0.5)
    with pytest.raises(StaleObservation, match=r'joints pan: found ages pan 0\.500 s'):
        setup.read(0.5)


def test_a_camera_that_is_stale_too_is_not_hidden_by_the_joints():
    setup = Setup()
    setup.joints(0.0, ('pan',), (1.0,))
    with pytest.raises(ObservationError, match='front'):
        setup.read(0.0)


def test_values_that_are_not_finite_are_refused_and_the_old_state_ages_out():
    setup = Setup()
    setup.image(0.0)
    setup.joints(0.0)
    assert not setup.joints(0.05, values=(float('nan'), 0.0))
    assert setup.intake.bad_messages == 1
    np.testing.assert_allclose(setup.read(0.06).observation.state, np.degrees([1.0, 0.5]))
    setup.image(0.3)
    with pytest.raises(StaleObservation, match=r'^joints'):
        setup.read(0.3)


def test_after_a_jump_the_joints_of_before_are_forgotten():
    jumps = []
    setup = Setup(on_jump=lambda *times: jumps.append(times))
    setup.image(100.0)
    setup.joints(100.0, values=(9.0, 9.0))
    assert not setup.joints(0.0, ('pan',), (1.0,))
    assert jumps == [(ns(100.0), ns(0.0))]
    setup.image(0.01)
    assert setup.joints(0.02, ('grip',), (0.5,), stamp=ns(0.01))
    np.testing.assert_allclose(setup.read(0.02).observation.state, np.degrees([1.0, 0.5]))


def test_a_policy_without_state_needs_no_joints():
    robot = contract()
    intake = ObservationIntake(
        robot,
        cameras=robot.cameras,
        with_state=False,
        max_skew_s=0.1,
        warn=lambda *_: None,
    )
    reader = ObservationReader(intake, robot, CAPABILITIES, warn=lambda *_: None)
    message = PLAIN.image(np.zeros((4, 6, 3), np.uint8), 'rgb8')
    message.header = header(ns(0.0))
    intake.image('front', message, now_ns=ns(0.0))
    assert reader.read(ns(0.0), task='').observation.state is None
