"""Thresholds: defaults per tier, changes by file and by option, and the bands they make."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sparkrt_ros.replay.judge import (
    CommandThresholds,
    Thresholds,
    ThresholdTable,
    judge_chunks,
    judge_commands,
    self_check,
)
from sparkrt_ros.runtime.errors import ConfigError
from sparkrt_ros.runtime.precision.tiers import TIERS

LIMITS = Thresholds(cosine=0.9, max_abs=1.0, p99_abs=0.5, warn=0.5)
RANGES = np.array([2.0, 4.0])
NAMES = ('a', 'b')


def chunks(count: int = 6) -> list[np.ndarray]:
    random = np.random.default_rng(1)
    return [10.0 + random.standard_normal((200, 2)) for _ in range(count)]


@pytest.mark.parametrize('name', list(TIERS))
def test_a_tier_is_judged_as_the_gate_that_lets_it_serve(name: str) -> None:
    limits = ThresholdTable.make().tiers[name]
    assert limits.cosine == TIERS[name].min_cosine
    assert limits.max_abs == TIERS[name].max_abs
    assert limits.p99_abs == TIERS[name].max_abs / 2


def test_a_warning_comes_at_a_share_of_every_limit() -> None:
    warning = LIMITS.warning
    assert (warning.max_abs, warning.p99_abs) == (0.5, 0.25)
    assert warning.cosine == pytest.approx(0.95)


@pytest.mark.parametrize(
    ('error', 'share', 'band'),
    [
        (0.4, 0.001, 'pass'),
        (0.6, 0.001, 'warn'),
        (1.1, 0.001, 'fail'),
        (0.2, 0.5, 'pass'),
        (0.3, 0.5, 'warn'),
        (0.55, 0.5, 'fail'),
    ],
)
def test_bands_of_chunks(error: float, share: float, band: str) -> None:
    wanted = chunks()
    found = [chunk.copy() for chunk in wanted]
    count = max(1, round(share * found[2].size))
    found[2].reshape(-1)[:count] += error
    assert judge_chunks(found, wanted, LIMITS)[0] == band


def test_a_band_other_than_pass_has_a_reason() -> None:
    wanted = chunks()
    found = [chunk + 0.3 for chunk in wanted]
    band, reasons, verdict = judge_chunks(found, wanted, LIMITS)
    assert band == 'warn'
    assert reasons == ('difference in 1 of 100 values 0.3 above 0.25',)
    assert verdict is not None
    assert judge_chunks(wanted, wanted, LIMITS)[:2] == ('pass', ())


def test_the_self_check_fails_what_replays_old_input() -> None:
    assert set(self_check(chunks(), LIMITS).values()) == {'fail'}
    assert 'fail' not in self_check([np.ones((3, 2))] * 5, LIMITS).values()


def test_a_file_changes_single_tiers(tmp_path: Path) -> None:
    file = tmp_path / 'limits.yaml'
    file.write_text(
        'bf16: {max_abs: 1e-3, warn: 0.25}\nrecorded: {rms_of_motion: 0.02}\n', encoding='utf-8'
    )
    table = ThresholdTable.make(file=file)
    assert table.tiers['bf16'] == Thresholds(cosine=0.9999, max_abs=1e-3, p99_abs=0.05, warn=0.25)
    assert table.tiers['fp32'] == Thresholds.of_tier('fp32')
    assert table.recorded == CommandThresholds(rms_of_motion=0.02)


def test_options_change_every_tier_and_win_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / 'limits.yaml'
    file.write_text('bf16: {max_abs: 0.5}\n', encoding='utf-8')
    table = ThresholdTable.make(file=file, changes={'max_abs': 0.25, 'warn': 1.0})
    assert {limits.max_abs for limits in table.tiers.values()} == {0.25}
    assert {limits.warn for limits in table.tiers.values()} == {1.0}
    assert table.recorded.warn == 1.0
    assert ThresholdTable.make(changes={'rms_of_motion': 0.5}).recorded.rms_of_motion == 0.5


@pytest.mark.parametrize(
    ('text', 'message'),
    [
        ('bf17: {max_abs: 1}', 'bf17'),
        ('bf16: {max: 1}', 'max_abs'),
        ('bf16: {max_abs: much}', "'much'"),
        ('bf16: {max_abs: true}', 'True'),
        ('bf16: {max_abs: .nan}', 'nan'),
        ('[1, 2]', 'a mapping'),
        ('a: b: c', 'no readable YAML'),
    ],
)
def test_what_a_file_may_not_say(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / 'limits.yaml'
    file.write_text(text, encoding='utf-8')
    with pytest.raises(ConfigError, match=message):
        ThresholdTable.make(file=file)


def test_unknown_options_and_missing_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match='unknown threshold'):
        ThresholdTable.make(changes={'cosinus': 1.0})
    with pytest.raises(ConfigError, match='no readable YAML'):
        ThresholdTable.make(file=tmp_path / 'nothing.yaml')


def motion(count: int = 300) -> np.ndarray:
    """(count, 2): one rms of each joint's motion is 1 and 0.5."""
    phase = np.arange(count) * 2 * np.pi / count
    return np.sqrt(2) * np.stack([np.sin(phase), 0.5 * np.cos(phase)], axis=1)


@pytest.mark.parametrize(('share', 'band'), [(0.4, 'pass'), (0.6, 'warn'), (1.1, 'fail')])
def test_commands_are_judged_by_the_motion_of_each_joint(share: float, band: str) -> None:
    found = motion()
    found[:, 1] += 0.5 * share
    verdict, reasons = judge_commands(found, motion(), RANGES, NAMES, CommandThresholds())
    assert verdict == band
    assert [reason[:2] for reason in reasons] == ([] if band == 'pass' else ['b:'])


def test_standing_still_or_the_wrong_way_round_fails() -> None:
    for found in (np.zeros((300, 2)) + 0.1, -motion(), motion()[:, ::-1]):
        band, reasons = judge_commands(found, motion(), RANGES, NAMES, CommandThresholds())
        assert band == 'fail'
        assert [reason[:2] for reason in reasons] == ['a:', 'b:']


def test_a_joint_that_hardly_moves_is_judged_by_its_range() -> None:
    still = np.zeros((300, 2))
    limits = CommandThresholds()
    assert judge_commands(still + 0.01, still, RANGES, NAMES, limits)[0] == 'pass'
    assert judge_commands(still + 0.1, still, RANGES, NAMES, limits)[0] == 'fail'


def test_what_is_not_known_does_not_count() -> None:
    found = motion()
    found[100:, 0] = np.nan
    found[50, 0] = np.nan
    assert judge_commands(found, motion(), RANGES, NAMES, CommandThresholds())[0] == 'pass'
    nothing = np.full((5, 2), np.nan)
    band, reasons = judge_commands(nothing, motion(5), RANGES, NAMES, CommandThresholds())
    assert band == 'fail'
    assert 'no recorded command' in reasons[0]
