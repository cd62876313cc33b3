"""The request to end: once, from any thread, and what waits for it."""

import threading
from concurrent.futures import Future

import pytest

pytest.importorskip('rclpy', reason='needs ROS 2')

from sparkrt_ros.nodes.shutdown import Stopped, StopToken


def test_callbacks_run_once_also_those_that_come_late():
    token, called = StopToken(), []
    token.add_callback(lambda: called.append('early'))
    token.add_callback(removed := (lambda: called.append('removed')))
    token.remove_callback(removed)
    token.set()
    token.set()
    token.add_callback(lambda: called.append('late'))
    assert called == ['early', 'late']


def test_the_first_fault_decides_the_exit_code():
    token = StopToken()
    assert token.exit_code == 0
    token.set()
    token.set(exit_code=3)
    token.set(exit_code=5)
    assert token.exit_code == 3


def test_waiting_ends_with_the_result():
    future = Future()
    threading.Timer(0.01, future.set_result, args=(7,)).start()
    assert StopToken().wait_for(future) == 7


def test_waiting_passes_the_exception_on():
    future = Future()
    future.set_exception(KeyError('x'))
    with pytest.raises(KeyError):
        StopToken().wait_for(future)


def test_waiting_ends_with_the_token():
    token = StopToken()
    threading.Timer(0.01, token.set).start()
    with pytest.raises(Stopped):
        token.wait_for(Future())


def test_a_result_that_is_there_counts_more_than_the_token():
    token, future = StopToken(), Future()
    token.set()
    future.set_result(1)
    assert token.wait_for(future) == 1
