"""A sleep that a message ends."""

from __future__ import annotations

import ctypes
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import rclpy
from rclpy.context import Context
from ros_harness import claim_domain
from std_msgs.msg import String

from sparkrt_ros.nodes import native, qos
from sparkrt_ros.nodes.message_pacer import MessagePacer
from sparkrt_ros.nodes.message_signal import SignalError
from sparkrt_ros.nodes.polled import PolledSubscription

pytestmark = pytest.mark.ros

SECOND = 1_000_000_000
LIMIT_S = 30.0


class Rig:
    """A pacer, its subscription, and a publisher to it that is matched."""

    def __init__(self) -> None:
        domain, self._claim = claim_domain()
        self._context = Context()
        rclpy.init(context=self._context, domain_id=domain)
        self._node = rclpy.create_node('paced', context=self._context)
        self.polled = PolledSubscription(self._node, String, 'words', qos.CHUNKS_TAKEN)
        self.publisher = self._node.create_publisher(String, 'words', qos.CHUNKS_TAKEN)
        self.pacer = MessagePacer(self.polled)
        self.stop = threading.Event()
        self._pool = ThreadPoolExecutor(1)
        # Until the first message has come, none is sure to come.
        sleep = self.sleep(LIMIT_S)
        while not sleep.done():
            self.publisher.publish(String(data='first'))
            self.stop.wait(0.05)
        assert sleep.result() is True
        self.publisher.wait_for_all_acked()
        self.take()

    def sleep(self, seconds: float, *, earliest_s: float = 0.0):
        now_ns = self.pacer.now_ns()
        return self._pool.submit(
            self.pacer.sleep_until,
            now_ns + round(seconds * SECOND),
            self.stop,
            earliest_ns=now_ns + round(earliest_s * SECOND),
        )

    def take(self) -> list[str]:
        return [m.data for m in self.polled.take()] if self.pacer.messages_wait() else []

    def close(self) -> None:
        self.stop.set()
        self._pool.shutdown()
        self.pacer.close()
        self._node.destroy_node()
        self._context.shutdown()
        self._claim.close()


@pytest.fixture
def rig(monkeypatch):
    monkeypatch.setenv('ROS_AUTOMATIC_DISCOVERY_RANGE', 'LOCALHOST')
    made = Rig()
    yield made
    made.close()


def test_a_message_ends_the_sleep_and_is_still_there(rig: Rig):
    sleep = rig.sleep(LIMIT_S)
    rig.publisher.publish(String(data='now'))
    assert sleep.result(LIMIT_S / 2) is True
    assert rig.take() == ['now']


def test_it_sleeps_on_until_the_earliest_time(rig: Rig):
    begin_ns = rig.pacer.now_ns()
    sleep = rig.sleep(LIMIT_S, earliest_s=0.3)
    rig.publisher.publish(String(data='soon'))
    assert sleep.result(LIMIT_S / 2) is True
    assert rig.pacer.now_ns() >= begin_ns + round(0.3 * SECOND)


def test_without_messages_it_ends_at_the_deadline(rig: Rig):
    begin_ns = rig.pacer.now_ns()
    assert rig.sleep(0.2).result(LIMIT_S) is False
    assert rig.pacer.now_ns() >= begin_ns + round(0.2 * SECOND)


def test_it_may_be_told_to_leave_messages_for_the_deadline(rig: Rig):
    rig.pacer.at_once = False
    begin_ns = rig.pacer.now_ns()
    sleep = rig.sleep(0.2)
    rig.publisher.publish(String(data='later'))
    assert sleep.result(LIMIT_S) is False
    assert rig.pacer.now_ns() >= begin_ns + round(0.2 * SECOND)


def test_a_stop_ends_the_sleep(rig: Rig):
    sleep = rig.sleep(LIMIT_S)
    rig.stop.set()
    assert sleep.result(LIMIT_S / 2) is False


def test_what_came_before_it_was_made_is_told_too_and_only_once(rig: Rig):
    assert not rig.pacer.messages_wait()
    rig.pacer.close()
    rig.publisher.publish(String(data='before'))
    rig.publisher.wait_for_all_acked()
    rig.pacer = MessagePacer(rig.polled)
    assert rig.sleep(LIMIT_S).result(LIMIT_S / 2) is True
    assert rig.take() == ['before']
    assert not rig.pacer.messages_wait()
    assert rig.sleep(0.05).result(LIMIT_S) is False


def test_it_may_be_closed_while_messages_come_and_after_its_subscription(rig: Rig):
    for _ in range(200):
        rig.publisher.publish(String(data='word'))
        rig.pacer.close()
        rig.pacer = MessagePacer(rig.polled)
    rig.polled.destroy()
    rig.pacer.close()
    rig.pacer.close()
    assert not rig.pacer.messages_wait(), 'a control thread that was stuck may still ask'


def test_a_middleware_that_cannot_tell_is_an_error(rig: Rig, monkeypatch):
    unsupported = 3
    refuse = ctypes.CFUNCTYPE(ctypes.c_int, *(ctypes.c_void_p,) * 3)(lambda *_: unsupported)
    with monkeypatch.context() as patched:
        patched.setattr(native.rcl(), 'rcl_subscription_set_on_new_message_callback', refuse)
        with pytest.raises(SignalError, match=r'/words: found code 3 .* tells when messages come'):
            MessagePacer(rig.polled)
