"""The bench of Pi0.5: its arithmetic, and a whole run of a tiny network."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).resolve().parents[2] / 'bench'
sys.path.append(str(BENCH))

import pi05  # noqa: E402
from pi05_arms import make_config  # noqa: E402
from pi05_stages import roofline  # noqa: E402


@pytest.mark.parametrize(
    ('views', 'tokens', 'wanted'),
    [(3, 200, (0.84, 4.75, 1.49)), (2, 50, (0.56, 2.72, 1.47))],
)
def test_the_roofline_is_that_of_the_arithmetic(
    views: int, tokens: int, wanted: tuple[float, ...]
) -> None:
    options = pi05.parse(['--views', str(views), '--tokens', str(tokens)])
    found = roofline(make_config(options), views=views, tokens=tokens, steps=10)
    stages = [found[f'{name}_ms'] for name in ('vision', 'prefix', 'denoise')]
    assert stages == pytest.approx(wanted, rel=0.02)
    assert found['total_ms'] == pytest.approx(sum(stages))


@pytest.mark.parametrize('kind', [[], ['--pi0']])
def test_every_arm_is_timed_and_compared(
    kind: list[str], tmp_path: Path, one_thread: None
) -> None:
    file = tmp_path / 'result.json'
    short = ['--tiny', '--device', 'cpu', '--steps', '1', '--tokens', '8', '--views', '1']
    assert (
        pi05.main(
            [*short, *kind, '--rounds', '3', '--repeat', '3', '--no-lerobot', '--json', str(file)]
        )
        == 0
    )
    result = json.loads(file.read_text())
    assert [arm['arm'] for arm in result['arms']] == ['fused', 'plain', 'eager']
    assert result['left_out'] == {}
    assert result['alone']['count'] == 3
    for arm in result['arms']:
        assert arm['count'] == 3
        assert arm['cosine'] >= 0.9999
