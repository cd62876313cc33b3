"""What /diagnostics says of the policy node."""

import pytest

pytest.importorskip('rclpy', reason='needs ROS 2')

from sparkrt_ros.nodes.diagnostics import Level
from sparkrt_ros.nodes.observation_buffer import StreamCounters
from sparkrt_ros.nodes.policy_health import (
    PolicyFacts,
    connection_health,
    inference_health,
    observation_health,
    policy_health,
)
from sparkrt_ros.nodes.policy_worker import Figures


def facts(**changes):
    return PolicyFacts(**{'state': 'active', 'reason': '', 'epoch': 1, **changes})


@pytest.mark.parametrize(
    ('state', 'reason', 'level'),
    [
        ('active', '', Level.OK),
        ('waiting', 'no pictures', Level.WARN),
        ('paused', 'paused by request', Level.OK),
        ('error', 'gone', Level.ERROR),
        ('unconfigured', '', Level.OK),
        ('unconfigured', 'configure failed', Level.ERROR),
    ],
)
def test_the_state_decides_the_level_and_the_reason_is_told(state, reason, level):
    health = policy_health(facts(state=state, reason=reason))
    assert health.level is level
    assert health.message == (f'{state}: {reason}' if reason else state)


def test_failures_in_a_row_are_an_error_until_one_succeeds():
    assert inference_health(facts(figures=Figures(failures=5))).level is Level.OK
    health = inference_health(facts(figures=Figures(failures=5, failures_in_a_row=2)))
    assert health.level is Level.ERROR
    assert health.message == '2 failures in a row'


def test_a_stream_that_never_came_is_named():
    streams = {
        'front': StreamCounters(received=5, dropped=1, age_s=0.1),
        'wrist': StreamCounters(received=0, dropped=0, age_s=-1.0),
    }
    health = observation_health(facts(streams=streams))
    assert health.level is Level.WARN
    assert health.message == 'nothing received: wrist'
    assert health.values['front dropped'] == 1


def test_lost_messages_name_the_profile_only_where_it_is_missing(monkeypatch):
    monkeypatch.delenv('FASTDDS_DEFAULT_PROFILES_FILE', raising=False)
    lost = facts(lost={'front/image': 7})
    assert connection_health(lost).level is Level.WARN
    assert 'front/image (7)' in connection_health(lost).message
    assert 'FASTDDS_DEFAULT_PROFILES_FILE' in connection_health(lost).message
    monkeypatch.setenv('FASTDDS_DEFAULT_PROFILES_FILE', '/x.xml')
    assert 'FASTDDS' not in connection_health(lost).message


def test_the_worst_fault_of_a_connection_is_told():
    everything = facts(
        lost={'a': 1}, unmatched=('b',), incompatible={'c': 'durability'}, incompatible_count=2
    )
    health = connection_health(everything)
    assert health.level is Level.ERROR
    assert health.message == 'incompatible QoS on c (durability)'
    assert health.values['incompatible endpoints'] == 2
    unmatched = connection_health(facts(unmatched=('b',)))
    assert unmatched.level is Level.WARN
    assert unmatched.message == 'no publisher on b'
