"""The shipped bags, and the tool that records them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from sparkrt_ros.convert.contract import load_contract
from sparkrt_ros.replay.bag import Bag, open_bag
from sparkrt_ros.replay.offline import ReplayOptions
from sparkrt_ros.replay.run import ParityOptions, run_parity
from sparkrt_ros.runtime.share import shared_path
from sparkrt_ros.sim.task import CAMERAS

ROOT = Path(__file__).resolve().parents[2]
BAGS = ('embedded_mcap', 'embedded_sqlite3')


@pytest.fixture(params=BAGS)
def bag(request: pytest.FixtureRequest) -> Iterator[Bag]:
    with open_bag(shared_path('bags') / request.param) as opened:
        yield opened


def test_they_are_small() -> None:
    sizes = [file.stat().st_size for file in shared_path('bags').rglob('*') if file.is_file()]
    assert sum(sizes) <= 3_000_000
    assert max(sizes) < 1_000_000


def test_they_are_whole_and_hold_what_the_contract_names(bag: Bag) -> None:
    contract = load_contract('embedded')
    wanted = {f'/{c.topic}' for c in contract.cameras}
    wanted |= {f'/{s.topic}' for s in contract.state_streams}
    wanted |= {f'/{group.topic}' for group in contract.outputs}
    assert set(bag.topics) == wanted
    counted = dict.fromkeys(wanted, 0)
    for message in bag.messages():
        counted[message.topic] += 1
        assert message.message is not None
    assert counted == {name: topic.count for name, topic in bag.topics.items()}
    assert bag.complete
    assert bag.warnings == ()


def test_rates_and_delays_are_those_of_a_robot(bag: Bag) -> None:
    seconds = (bag.end_ns - bag.start_ns) / 1e9
    for topic, rate_hz in (('/joint_states', 100), ('/front_camera/image_raw', 30)):
        assert bag.topics[topic].count == pytest.approx(seconds * rate_hz, abs=3)
        delays_ns = {m.log_ns - (m.stamp_ns or 0) for m in bag.messages([topic])}
        assert all(100_000 < delay_ns < 20_000_000 for delay_ns in delays_ns)


def test_the_recorded_commands_moved_the_arm() -> None:
    """Every joint follows its commands closely, a moment later."""
    with open_bag(shared_path('bags') / 'embedded_mcap') as bag:
        seconds = (bag.end_ns - bag.start_ns) / 1e9
        assert 8.0 <= seconds <= 12.0
        commands = column(bag, '/forward_position_controller/commands', 'data')
        measured = column(bag, '/joint_states', 'position')
    times, wanted = commands
    later = np.searchsorted(measured[0], times + 100_000_000).clip(max=len(measured[0]) - 1)
    error = np.abs(measured[1][later][:, : wanted.shape[1]] - wanted)
    assert np.ptp(wanted, axis=0).min() > 0.3
    assert np.percentile(error, 95) < 0.15


def test_a_replay_finds_the_recorded_commands_again() -> None:
    result = run_parity(
        ParityOptions(
            bag=shared_path('bags') / 'embedded_mcap',
            robot='embedded',
            checkpoint=shared_path('checkpoints') / 'embedded_pick_place',
            candidates=(),
            replay=ReplayOptions(latency_s=0.040, max_chunks=8, with_commands=True),
            against_recorded=True,
        )
    )
    (comparison,) = result.comparisons
    (space,) = comparison.spaces
    assert comparison.reference == 'recorded'
    # Nothing but the rounding of another machine's arithmetic.
    assert space.overall.max_abs < 1e-3


def column(bag: Bag, topic: str, field: str) -> tuple[np.ndarray, np.ndarray]:
    """Times (N,) and one field (N, joints) of a topic."""
    rows = [(m.log_ns, np.array(getattr(m.message, field))) for m in bag.messages([topic])]
    return np.array([t for t, _ in rows]), np.array([values for _, values in rows])


def test_the_tool_records_the_same_again() -> None:
    """As far as the machine's arithmetic is that of the one that recorded them."""
    sys.path.insert(0, str(ROOT / 'tools'))
    try:
        import record_sample_bag as tool
    finally:
        sys.path.remove(str(ROOT / 'tools'))
    once, again = (tool.record(11, limit_ns=1_500_000_000)[0] for _ in range(2))
    assert [vars(m) for m in once] == [vars(m) for m in again]
    with open_bag(shared_path('bags') / 'embedded_mcap') as bag:
        shipped = [m for m, _ in zip(bag.messages(), once, strict=False)]
    common = len(once) - 20  # what is still on its way at the end never arrives
    assert [(m.topic, m.log_ns) for m in shipped[:common]] == [
        (m.topic, m.log_ns) for m in once[:common]
    ]
    last = max(i for i in range(common) if shipped[i].topic == '/joint_states')
    recorded = shipped[last].decoder.decode(once[last].data, where='')
    assert np.abs(shipped[last].message.position - recorded.position).max() < 1e-3
    assert {f'/{camera}_camera/image_raw' for camera in CAMERAS} <= {m.topic for m in once}
