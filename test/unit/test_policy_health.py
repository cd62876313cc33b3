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
    swap_health,
)
from sparkrt_ros.nodes.policy_worker import Figures
from sparkrt_ros.nodes.swap_rules import SwapReport


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


def test_the_receipt_says_what_serves_and_why_no_other_form():
    receipt = {
        'backend': 'fused',
        'precision': 'bf16',
        'digest': 'ab12',
        'gate': {'cosine': 0.99998, 'max_abs': 0.004, 'p99_abs': 0.003},
        'refused': [{'form': 'cudagraph bf16', 'reason': 'no CUDA device'}],
        'notes': ['calibrated on 64 observations'],
        'warnings': ['device of the checkpoint is ignored'],
    }
    values = policy_health(facts(receipt=receipt)).values
    assert (values['backend'], values['precision'], values['digest']) == ('fused', 'bf16', 'ab12')
    assert float(values['gate cosine']) == 0.99998
    assert values['gate largest difference'] == 0.004
    assert values['refused 1'] == 'cudagraph bf16: no CUDA device'
    assert values['note 1'] == 'calibrated on 64 observations'
    assert values['warning 1'] == 'device of the checkpoint is ignored'


def test_rates_stand_beside_ages():
    streams = {'front': StreamCounters(received=5, dropped=1, age_s=0.1)}
    values = observation_health(facts(streams=streams, rates_hz={'front': 29.7})).values
    assert (values['front rate [Hz]'], values['front age [s]']) == (29.7, 0.1)


def test_a_silent_topic_is_a_warning_with_its_cause():
    health = connection_health(facts(silent={'/front': 'nobody publishes on /front'}))
    assert (health.level, health.message) == (Level.WARN, 'nobody publishes on /front')
    assert health.values['/front silent'] == 'nobody publishes on /front'
    worse = facts(silent={'/front': 'nobody'}, incompatible={'/front': 'reliability'})
    assert connection_health(worse).level is Level.ERROR


@pytest.mark.parametrize(
    ('swap', 'level', 'message'),
    [
        (SwapReport(), Level.OK, 'idle'),
        (SwapReport(state='gating', target='precision bf16'), Level.OK, 'gating: precision bf16'),
        (
            SwapReport(state='failed', target='checkpoint /x', text='no folder', failed=2),
            Level.WARN,
            'failed: checkpoint /x: no folder',
        ),
    ],
)
def test_a_swap_is_told(swap, level, message):
    health = swap_health(facts(swap=swap))
    assert (health.level, health.message) == (level, message)
    assert health.values['failed'] == swap.failed
