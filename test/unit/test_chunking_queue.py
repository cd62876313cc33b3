from __future__ import annotations

import numpy as np
import pytest

from sparkrt_ros.runtime.chunking.queue import ActionQueue
from sparkrt_ros.runtime.errors import ActionError, ConfigError

CHUNK = np.arange(12, dtype=np.float32).reshape(4, 3)


def test_rows_come_out_in_order_and_only_the_first_ones() -> None:
    queue = ActionQueue(n_action_steps=2)
    queue.refill(CHUNK)
    assert len(queue) == 2
    np.testing.assert_array_equal([queue.pop(), queue.pop()], CHUNK[:2])
    assert len(queue) == 0


def test_a_refill_replaces_what_is_left() -> None:
    queue = ActionQueue(n_action_steps=3)
    queue.refill(CHUNK)
    queue.pop()
    queue.refill(CHUNK + 100)
    assert len(queue) == 3
    np.testing.assert_array_equal(queue.pop(), CHUNK[0] + 100)


def test_rows_are_copies_of_the_chunk_and_of_each_other() -> None:
    chunk = CHUNK.copy()
    queue = ActionQueue(n_action_steps=2)
    queue.refill(chunk)
    chunk[:] = -1
    first = queue.pop()
    assert first.base is None
    first[:] = -2
    np.testing.assert_array_equal(queue.pop(), CHUNK[1])


def test_clearing_leaves_nothing_to_pop() -> None:
    queue = ActionQueue(n_action_steps=2)
    queue.refill(CHUNK)
    queue.clear()
    with pytest.raises(ActionError, match='no action left'):
        queue.pop()


@pytest.mark.parametrize('chunk', [CHUNK[:1], CHUNK[0], CHUNK[None]], ids=['short', '1-D', '3-D'])
def test_a_chunk_that_does_not_fit_is_refused_and_changes_nothing(chunk: np.ndarray) -> None:
    queue = ActionQueue(n_action_steps=2)
    queue.refill(CHUNK)
    with pytest.raises(ActionError, match='at least 2 rows'):
        queue.refill(chunk)
    assert len(queue) == 2


def test_fewer_than_one_step_is_refused() -> None:
    with pytest.raises(ConfigError, match='n_action_steps'):
        ActionQueue(n_action_steps=0)
