"""T2: a callback that raises leaves no lock held and nothing stuck, whoever calls it."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
import pytest
from ros_fixtures import TINY_ROBOT
from sensor_msgs.msg import Image
from streamer_rig import still

from sparkrt_ros.convert.contract import load_contract
from sparkrt_ros.nodes import qos
from sparkrt_ros.nodes.chunk_gate import ChunkGate
from sparkrt_ros.nodes.observation_buffer import ObservationBuffer, StreamSpec
from sparkrt_ros.nodes.observation_intake import ObservationIntake
from sparkrt_ros.nodes.policy_inputs import PolicyInputs
from sparkrt_ros.nodes.streamer_core import Options, Pose, StreamerCore
from sparkrt_ros.runtime.types import ActionChunk

pytestmark = pytest.mark.ros

S = 1_000_000_000


class Defect(Exception):
    pass


def fail(*_: object, **__: object) -> None:
    raise Defect


def in_another_thread(act: Callable[[], object]) -> object:
    """What ``act`` returns, from a thread that does not hold the locks of this one."""
    results: list[object] = []
    thread = threading.Thread(target=lambda: results.append(act()), daemon=True)
    thread.start()
    thread.join(10.0)
    assert results, 'a lock is still held'
    return results[0]


def test_the_buffer_after_its_jump_callback_raised():
    spec = StreamSpec(name='front', topic='front', max_age_s=1.0)
    buffer = ObservationBuffer([spec], max_skew_s=0.1, on_jump=fail)
    buffer.put('front', 'old', stamp_ns=100 * S, now_ns=100 * S)
    with pytest.raises(Defect):
        buffer.put('front', 'new', stamp_ns=50 * S, now_ns=50 * S)
    assert in_another_thread(lambda: buffer.put('front', 'new', stamp_ns=50 * S, now_ns=50 * S))
    snapshot = buffer.snapshot(50 * S)
    assert (snapshot.reference_ns, snapshot.epoch) == (50 * S, 1)
    assert snapshot.samples['front'].payload == 'new'


def test_the_gate_after_a_publication_raised():
    gate = ChunkGate()
    gate.open()
    with pytest.raises(Defect):
        gate.let_pass(gate.epoch, fail)
    assert in_another_thread(gate.raise_epoch) == 2
    assert gate.let_pass(2, lambda: None)


def test_the_streamer_after_a_publication_raised():
    contract = load_contract(str(TINY_ROBOT))
    core = StreamerCore.for_robot(
        contract,
        period_s=0.01,
        outlet=type('Broken', (), {'prepare': fail})(),
        notify=lambda: None,
    )
    core.set_options(
        Options(
            mode='queue',
            temporal_ensemble_coeff=0.01,
            hold_s=1.0,
            velocity_scale=1.0,
            start_max_error=0.0,
        )
    )
    core.activate(100 * S)
    core.pose = Pose(values=np.zeros(5), fresh_until_ns=200 * S)
    chunk = ActionChunk(
        actions=np.zeros((20, 5), np.float32),
        joint_names=contract.action,
        observation_stamp_ns=100 * S,
        dt_s=0.05,
    )
    core.offer(chunk, session_id=1)
    with pytest.raises(Defect):
        core.tick(100 * S)
    assert in_another_thread(lambda: core.pause(100 * S) or core.snapshot.state) == 'paused'


class SurprisedIntake(ObservationIntake):
    """Raises what nobody expects at its first picture."""

    surprises = 1

    def image(self, *arguments, **options):
        if self.surprises:
            self.surprises -= 1
            raise Defect('a picture nobody thought of')
        return super().image(*arguments, **options)


def test_the_subscriptions_after_a_message_surprised(peer):
    contract = load_contract(str(TINY_ROBOT))
    intake = SurprisedIntake(
        contract,
        cameras=contract.cameras[:1],
        with_state=False,
        max_skew_s=0.1,
        warn=lambda *_: None,
    )
    arrived: list[bool] = []
    told = threading.Condition()

    def note(name, message, now_ns, stored):
        with told:
            arrived.append(stored)
            told.notify_all()

    inputs = PolicyInputs(peer.node, intake, qos.QosEvents(peer.node), arrived=note)
    try:
        camera = peer.publisher(Image, contract.cameras[0].topic, qos.CAMERA)
        camera.wait_matched()
        message = Image(height=1, width=1, encoding='rgb8', step=3, data=bytes(3))
        for count in (1, 2, 3):
            message.header.stamp = peer.node.get_clock().now().to_msg()
            camera.publish(message)
            with told:
                assert told.wait_for(lambda n=count: len(arrived) >= n, 20.0)
    finally:
        inputs.destroy()
    assert arrived == [False, True, True]
    assert inputs.failures == 1
    now_ns = peer.now_ns
    assert in_another_thread(lambda: intake.buffer.counters(now_ns))['front'].received == 2


def test_a_defect_while_a_chunk_is_taken_leaves_the_streamer_streaming(tmp_path):
    """The ROS thread of the process that holds the arm outlives whatever a message does."""
    from streamer_rig import open_rig

    with open_rig(tmp_path) as rig:
        process = rig.start()
        rig.publish(still(1500, pan=0.01))
        rig.wait_status('streaming')
        # Beyond what a time in the message of the next progress can hold.
        broken = rig.chunk(still(5))
        broken.observation_stamp.sec = -(2**31)
        rig.chunks.publish(broken)
        process.wait_for_log('chunk refused|failed')
        rig.arm.wait_for(count=20)
        assert rig.now_status().state == 'streaming'
