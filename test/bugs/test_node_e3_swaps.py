"""E3 for swaps: a value of the wrong type or out of range begins none, whatever is set with it."""

import pytest
from swap_rig import NODE

pytestmark = pytest.mark.ros


@pytest.mark.parametrize(
    ('name', 'value', 'reason'),
    [
        ('precision', 16, "'precision': found integer 16; expected string"),
        ('precision', 'int3', "'precision': found string 'int3'; expected one of"),
        ('backend', ['eager'], "found string_array ('eager',); expected string"),
        ('checkpoint', 3.5, "'checkpoint': found double 3.5; expected string"),
        ('threads', 1.5, "'threads': found double 1.5; expected integer"),
        ('threads', 10**6, '1000000'),
        ('num_steps', True, "'num_steps': found bool True; expected integer"),
        ('num_steps', -1, '-1'),
    ],
)
def test_a_wrong_value_begins_no_swap(policy, feed, peer, name, value, reason):
    feed.start()
    before = peer.get_parameter(NODE, name)
    result = peer.set_parameters(NODE, **{name: value})[0]
    assert not result.successful
    assert reason in result.reason
    assert name in result.reason
    assert peer.get_parameter(NODE, name) == before
    status = policy.status.wait_for(count=2)
    assert (status.swap_state, status.swaps + status.swaps_failed) == ('idle', 0)


def test_one_wrong_value_keeps_the_whole_set_out(policy, feed, peer):
    feed.start()
    result = peer.set_parameters_atomically(NODE, precision='fp16', threads='two', prompt='lift')
    assert "'threads': found string 'two'; expected integer" in result.reason
    for name, value in (('precision', 'fp32'), ('threads', 1), ('prompt', '')):
        assert peer.get_parameter(NODE, name) == value
    policy.chunks.wait_for()
    assert policy.status.wait_for().swap_state == 'idle'
