"""Captures and waits for a whole device never overlap; nobody waits for ever."""

from __future__ import annotations

import threading

import pytest
import torch

from sparkrt_ros.runtime.backends.turns import Turns

LIMIT_S = 10.0


@pytest.fixture
def turns() -> Turns:
    return Turns()


def in_thread(run) -> threading.Thread:
    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


def test_a_wait_that_comes_during_a_capture_begins_after_it(turns: Turns) -> None:
    ended = threading.Event()
    began_after_end = []
    wait = turns.waiting(lambda: began_after_end.append(ended.is_set()))
    with turns.alone():
        thread = in_thread(wait)
        thread.join(0.05)
        assert thread.is_alive()
        ended.set()
    thread.join(LIMIT_S)
    assert began_after_end == [True]


def test_a_capture_begins_after_the_waits_in_progress(turns: Turns) -> None:
    waiting, go_on, captured = threading.Event(), threading.Event(), threading.Event()
    order = []

    def slow() -> None:
        waiting.set()
        assert go_on.wait(LIMIT_S)
        order.append('wait')

    def capture() -> None:
        with turns.alone():
            order.append('capture')
            captured.set()

    in_thread(turns.waiting(slow))
    assert waiting.wait(LIMIT_S)
    in_thread(capture)
    assert not captured.wait(0.05)
    go_on.set()
    assert captured.wait(LIMIT_S)
    assert order == ['wait', 'capture']


def test_the_capturing_thread_may_wait_itself(turns: Turns) -> None:
    calls = []
    wait = turns.waiting(lambda device=None: calls.append(device))
    with turns.alone():
        wait(3)
        wait(device=4)
    assert calls == [3, 4]


def test_a_loop_of_waits_lets_a_capture_through(turns: Turns) -> None:
    ending = threading.Event()
    wait = turns.waiting(lambda: None)

    def loop() -> None:
        while not ending.is_set():
            wait()

    threads = [in_thread(loop) for _ in range(3)]
    captures = []
    for _ in range(50):
        with turns.alone():
            captures.append(1)
    ending.set()
    for thread in threads:
        thread.join(LIMIT_S)
        assert not thread.is_alive()
    assert len(captures) == 50


def test_an_error_ends_a_turn(turns: Turns) -> None:
    def fail() -> None:
        raise RuntimeError('lost')

    with pytest.raises(RuntimeError, match='lost'):
        turns.waiting(fail)()
    with pytest.raises(RuntimeError, match='lost'), turns.alone():
        fail()
    with turns.alone():
        pass


def test_torch_takes_turns_once_however_often_it_is_asked_to(
    turns: Turns, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []
    monkeypatch.setattr(torch.cuda, 'synchronize', lambda device=None: calls.append(device))
    turns.install()
    installed = torch.cuda.synchronize
    turns.install()
    assert torch.cuda.synchronize is installed
    torch.cuda.synchronize('cuda:0')
    assert calls == ['cuda:0']
