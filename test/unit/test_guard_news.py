"""What is logged of the guard: all kinds in one line, at a bounded rate."""

from __future__ import annotations

from sparkrt_ros.nodes.guard_news import GuardNews


def test_interventions_are_told_by_kind_and_only_what_is_new():
    now_s = [100.0]
    news = GuardNews(period_s=10.0, clock_s=lambda: now_s[0])
    counts = {'position': 0, 'velocity': 0, 'refused': 0}
    assert news.line(counts) == ''
    counts['velocity'] = 7
    counts['refused'] = 1
    assert news.line(counts) == 'the guard changed or refused commands: velocity 7, refused 1'
    counts['velocity'] = 900
    now_s[0] += 9.9
    assert news.line(counts) == ''
    now_s[0] += 0.2
    counts['velocity'] = 1000
    assert news.line(counts) == 'the guard changed or refused commands: velocity 993'
    now_s[0] += 100.0
    assert news.line(counts) == ''


def test_after_an_activation_counters_begin_at_0_again():
    news = GuardNews(clock_s=lambda: 0.0)
    assert news.line({'step': 5}).endswith('step 5')
    news.begin()
    assert news.line({'step': 2}).endswith('step 2')
