"""A hundred sets of parameters a second for ten seconds: few builds, no growth, last one wins."""

import itertools
import threading
from pathlib import Path

import pytest
from rcl_interfaces.srv import SetParametersAtomically
from rclpy.parameter import Parameter
from swap_rig import NODE, serve

from sparkrt_ros.nodes.hot_swap import INTERVAL_S

pytestmark = [pytest.mark.ros, pytest.mark.slow]

SETS, RATE_HZ = 1000, 100.0
PRECISIONS = ('fp16', 'tf32', 'fp32')


def resident_mb(pid):
    """Without what the middleware shares with other processes."""
    lines = Path(f'/proc/{pid}/status').read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith('RssAnon')) / 1e3


def threads(pid):
    return len(list(Path(f'/proc/{pid}/task').iterdir()))


class Storm:
    """Sends sets at a steady rate without waiting for answers, and counts these.

    Where the node is behind by more than the ten requests the middleware keeps, some get lost.
    """

    def __init__(self, peer):
        self._client = peer.node.create_client(
            SetParametersAtomically, f'{NODE}/set_parameters_atomically'
        )
        assert self._client.wait_for_service(20.0)
        self._numbers = itertools.count()
        self.sent = threading.Event()
        self.accepted = 0
        self._timer = peer.every(1.0 / RATE_HZ, self._send)

    def _send(self):
        number = next(self._numbers)
        if number >= SETS:
            self._timer.cancel()
            self.sent.set()
            return
        values = {'precision': PRECISIONS[number % 3], 'prompt': f'task {number}'}
        parameters = [Parameter(n, value=v).to_parameter_msg() for n, v in values.items()]
        future = self._client.call_async(SetParametersAtomically.Request(parameters=parameters))
        future.add_done_callback(self._answered)

    def _answered(self, future):
        self.accepted += future.result().result.successful


def swap_once(policy, peer, precision):
    assert peer.set_parameters(NODE, precision=precision)[0].successful
    policy.status.wait_for(
        lambda m: m.precision == precision and m.swap_state == 'idle', timeout_s=60.0
    )


def test_a_storm_of_sets_does_no_harm(start_policy, feed, peer):
    policy = serve(start_policy, feed, altered={})
    pid = policy.process.pid
    # What swaps cost in memory is there before: twice the policy, and the libraries of each tier.
    for precision in (*PRECISIONS, *PRECISIONS):
        swap_once(policy, peer, precision)
    loads, memory, count = policy.process.lines.count('loading'), resident_mb(pid), threads(pid)
    swaps, policy_chunks = policy.status.wait_for().swaps, len(policy.chunks)

    storm = Storm(peer)
    assert storm.sent.wait(60.0)
    assert peer.set_parameters_atomically(NODE, precision='fp16', prompt='the last').successful
    policy.status.wait_for(lambda m: m.swap_state == 'idle', timeout_s=60.0)
    status = policy.status.wait_for(count=2)
    assert status.precision == peer.get_parameter(NODE, 'precision') == 'fp16'
    assert peer.get_parameter(NODE, 'prompt') == 'the last'
    begun = policy.process.lines.count('loading') - loads
    assert storm.accepted > SETS / 10
    assert status.swaps - swaps <= begun <= 2 * SETS / RATE_HZ / INTERVAL_S
    assert status.swaps_failed == 0
    assert len(policy.chunks) > policy_chunks, 'it served all the while'
    assert resident_mb(pid) - memory < 40.0
    assert threads(pid) <= count + 2
    assert 'Traceback' not in policy.process.log
