"""Rates from counters that are looked at now and then."""

import pytest

from sparkrt_ros.nodes.stream_rates import RateMeter

SECOND = 1_000_000_000


def test_a_steady_counter_has_its_rate_whatever_the_looks():
    meter = RateMeter()
    for now_s in (0.0, 0.13, 0.5, 1.7, 2.0, 6.0, 6.1):
        meter.update({'front': round(30 * now_s), 'state': 7}, now_ns=round(now_s * SECOND))
    rates = meter.rates()
    assert rates['front'] == pytest.approx(30.0, rel=0.02)
    assert rates['state'] == 0.0


def test_nothing_is_known_at_first():
    meter = RateMeter()
    assert meter.rates() == {}
    meter.update({'front': 5}, now_ns=0)
    assert meter.rates() == {'front': 0.0}
    meter.update({'front': 9}, now_ns=0)
    assert meter.rates() == {'front': 0.0}, 'time stood still'


def test_only_the_last_seconds_count():
    meter = RateMeter(window_ns=2 * SECOND)
    count = 0
    for second in range(10):
        count += 100 if second < 5 else 10
        meter.update({'front': count}, now_ns=second * SECOND)
    assert meter.rates() == {'front': 10.0}
    for second in range(10, 14):
        meter.update({'front': count}, now_ns=second * SECOND)
    assert meter.rates() == {'front': 0.0}, 'it fell silent'


@pytest.mark.parametrize(
    ('counts', 'now_ns'),
    [({'front': 1}, 9 * SECOND), ({'front': 50}, SECOND), ({'wrist': 50}, 9 * SECOND)],
    ids=['counter went back', 'time went back', 'other streams'],
)
def test_it_starts_over(counts, now_ns):
    meter = RateMeter()
    meter.update({'front': 0}, now_ns=0)
    meter.update({'front': 30}, now_ns=2 * SECOND)
    meter.update(counts, now_ns=now_ns)
    assert meter.rates() == dict.fromkeys(counts, 0.0)
