"""The shipped bag through this build, against what a real LeRobot made of the same frames."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sparkrt_ros.replay.arms import ArmSpec
from sparkrt_ros.replay.exchange import read_actions
from sparkrt_ros.replay.offline import ReplayOptions
from sparkrt_ros.replay.run import ParityOptions, run_parity

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = Path(__file__).parent / 'parity_embedded_actions.npz'
BAG = ROOT / 'bags' / 'embedded_mcap'
# As in the other golden files: the arithmetic of another CPU may differ in the last bits.
TOLERANCE = 1e-5


def test_a_recorded_drive_gives_the_actions_of_lerobot() -> None:
    """Bag, contract, buffer, pictures, processors and network: everything there is in between."""
    result = run_parity(
        ParityOptions(
            bag=BAG,
            robot='embedded',
            checkpoint=ROOT / 'checkpoints' / 'embedded_pick_place',
            candidates=(ArmSpec(),),
            replay=ReplayOptions(rate_hz=2.0),
            lerobot_actions=GOLDEN,
        )
    )
    golden = read_actions(GOLDEN)
    assert golden.label.startswith('lerobot ')
    against = {c.candidate: c for c in result.comparisons if c.reference == golden.label}
    assert set(against) == {arm.label for arm in result.arms[:2]}
    for comparison in against.values():
        assert comparison.band == 'pass', comparison.reasons
        assert comparison.follows_input
        for space in comparison.spaces:
            assert space.overall.max_abs < TOLERANCE
    reference = result.arms[0]
    assert reference.normalized is not None
    assert reference.normalized.shape == golden.normalized.shape
    assert len(result.records) > 10


@pytest.mark.parametrize('column', [0, 4])
def test_the_comparison_would_notice_one_joint(column: int, tmp_path: Path) -> None:
    """A joint that is off by a hundredth of its spread is enough to fail."""
    golden = read_actions(GOLDEN)
    wrong = golden.normalized.copy()
    wrong[:, :, column] += 0.01
    path = tmp_path / 'wrong.npz'
    with np.load(GOLDEN, allow_pickle=False) as archive:
        np.savez(path, **{**dict(archive), 'normalized': wrong})
    result = run_parity(
        ParityOptions(
            bag=BAG,
            robot='embedded',
            checkpoint=ROOT / 'checkpoints' / 'embedded_pick_place',
            candidates=(ArmSpec(backend='eager'),),
            replay=ReplayOptions(rate_hz=2.0),
            lerobot_actions=path,
        )
    )
    failed = [c for c in result.comparisons if c.band == 'fail']
    assert len(failed) == 2
    errors = [joint.max_abs for joint in failed[0].spaces[0].joints]
    assert np.flatnonzero(np.array(errors) > 0.005).tolist() == [column]
