"""A policy node that serves, and swaps of it that never end; for tests of swaps."""

from __future__ import annotations

from typing import Any

from ros_fixtures import PolicyUnderTest
from ros_harness import Peer

from sparkrt.msg import PolicyStatus

NODE = '/sparkrt'
# The first policy is loaded at once, every other one takes for ever.
STUCK = {'QUICK_LOADS': '1', 'SLOW_LOAD_S': '600'}


def serve(start_policy: Any, feed: Any, **options: Any) -> PolicyUnderTest:
    """A policy node whose chunks come."""
    policy = start_policy(**options)
    feed.start()
    policy.chunks.wait_for()
    return policy


def begin_swap(policy: PolicyUnderTest, peer: Peer, **values: Any) -> PolicyStatus:
    """Ask for another policy (another precision, where nothing is given) and see it begun."""
    assert peer.set_parameters_atomically(NODE, **(values or {'precision': 'fp16'})).successful
    return policy.status.wait_for(lambda m: m.swap_state != 'idle')
