"""The thread that owns the policy: order of work, waking, failures, ending."""

import math
import threading

import pytest

from sparkrt_ros.nodes.inference_thread import InferenceThread, ThreadEnded, is_sticky

LIMIT_S = 10.0


@pytest.fixture
def failures():
    return []


@pytest.fixture
def thread(failures):
    worker = InferenceThread(on_failure=failures.append)
    yield worker
    worker.end()
    assert worker.join(timeout_s=LIMIT_S)


def test_commands_run_in_order_in_one_thread_that_is_not_the_callers(thread):
    idents = [thread.submit(threading.get_ident) for _ in range(5)]
    found = {future.result(LIMIT_S) for future in idents}
    assert len(found) == 1
    assert found != {threading.get_ident()}
    order = []
    futures = [thread.submit(lambda n=n: order.append(n)) for n in range(10)]
    futures[-1].result(LIMIT_S)
    assert order == list(range(10))


def test_an_exception_of_a_command_reaches_its_caller_and_the_thread_goes_on(thread, failures):
    def fail():
        raise ValueError('no such file')

    with pytest.raises(ValueError, match='no such file'):
        thread.submit(fail).result(LIMIT_S)
    assert thread.submit(lambda: 3).result(LIMIT_S) == 3
    assert failures == []


def test_a_step_runs_when_woken_and_not_otherwise(thread):
    ran = threading.Semaphore(0)

    def step():
        ran.release()
        return math.inf

    thread.repeat(step)
    assert ran.acquire(timeout=LIMIT_S)
    thread.submit(lambda: None).result(LIMIT_S)
    assert ran.acquire(timeout=LIMIT_S)  # after a command the step looks again
    assert not ran.acquire(timeout=0.05)
    thread.wake()
    assert ran.acquire(timeout=LIMIT_S)


def test_a_step_runs_again_after_the_time_it_asked_for(thread):
    ran = threading.Semaphore(0)

    def step():
        ran.release()
        return 0.001

    thread.repeat(step)
    for _ in range(20):
        assert ran.acquire(timeout=LIMIT_S)


def test_commands_come_before_the_next_step(thread):
    entered, go = threading.Event(), threading.Event()
    order = []

    def step():
        order.append('step')
        entered.set()
        go.wait(LIMIT_S)
        return 0.0 if len(order) < 3 else math.inf

    thread.repeat(step)
    assert entered.wait(LIMIT_S)
    futures = [thread.submit(lambda: order.append('command')) for _ in range(2)]
    go.set()
    for future in futures:
        future.result(LIMIT_S)
    assert order[:3] == ['step', 'command', 'command']


def test_a_failing_step_is_reported_and_tried_again(thread, failures):
    ran = threading.Event()

    def step():
        if len(failures) < 3:
            raise RuntimeError('bad frame')
        ran.set()
        return math.inf

    thread.repeat(step)
    assert ran.wait(LIMIT_S)
    assert [str(error) for error in failures] == ['bad frame'] * 3


def test_no_step_runs_after_repeat_none(thread):
    ran = threading.Semaphore(0)

    def step():
        ran.release()
        return 0.0

    thread.repeat(step)
    assert ran.acquire(timeout=LIMIT_S)
    thread.repeat(None)
    thread.submit(lambda: None).result(LIMIT_S)
    while ran.acquire(blocking=False):
        pass
    thread.submit(lambda: None).result(LIMIT_S)
    assert not ran.acquire(blocking=False)


def test_the_end_cancels_what_waits_runs_the_last_command_and_refuses_new_ones(failures):
    worker = InferenceThread(on_failure=failures.append)
    entered, go = threading.Event(), threading.Event()

    def block():
        entered.set()
        go.wait(LIMIT_S)

    running = worker.submit(block)
    assert entered.wait(LIMIT_S)
    waiting = worker.submit(lambda: None)
    freed = threading.Event()
    worker.end(last=freed.set)
    worker.end(last=lambda: pytest.fail('ended twice'))
    assert waiting.cancelled()
    assert not worker.join(timeout_s=0.01)
    go.set()
    assert worker.join(timeout_s=LIMIT_S)
    assert running.done()
    assert freed.is_set()
    with pytest.raises(ThreadEnded):
        worker.submit(lambda: None)


class AcceleratorError(RuntimeError):
    pass


class OutOfMemoryError(RuntimeError):
    pass


@pytest.mark.parametrize(
    ('error', 'sticky'),
    [
        (RuntimeError('CUDA error: an illegal memory access was encountered'), True),
        (AcceleratorError('device-side assert triggered'), True),
        (OutOfMemoryError('CUDA out of memory. Tried to allocate 2 GiB'), False),
        (RuntimeError('shape mismatch'), False),
        (ValueError('CUDA error in a file name'), False),
    ],
)
def test_errors_that_end_the_use_of_the_device_are_told_apart(error, sticky):
    assert is_sticky(error) is sticky
