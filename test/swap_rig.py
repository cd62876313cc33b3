"""A policy node that serves, and swaps of it, some of which never end; for tests of swaps."""

from __future__ import annotations

from typing import Any

from ros_fixtures import PolicyUnderTest
from ros_harness import Peer

from sparkrt.msg import PolicyStatus

NODE = '/sparkrt'
SWAP_S = 60.0
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


def swap(policy: PolicyUnderTest, peer: Peer, **values: Any) -> PolicyStatus:
    """Set parameters and wait for the changeover, then for a chunk of the new policy."""
    done = policy.status.wait_for().swaps
    result = peer.set_parameters_atomically(NODE, **values)
    assert result.successful, result.reason
    status = policy.status.wait_for(
        lambda m: m.swaps > done or m.swap_state == 'failed', timeout_s=SWAP_S, what='swap'
    )
    assert (status.swaps, status.swap_state) == (done + 1, 'idle'), status.swap_text
    policy.chunks.wait_for()
    return status
