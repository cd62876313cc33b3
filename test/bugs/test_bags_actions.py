"""What bags of rows B1 and B2 mean for the actions: the same for every copy, and an exit code."""

from __future__ import annotations

from pathlib import Path

import pytest
from bag_factory import Recorded, write_db3, write_mcap

from sparkrt_ros.cli.main import main
from sparkrt_ros.replay.bag import open_bag
from sparkrt_ros.replay.offline import ReplayOptions
from sparkrt_ros.replay.run import ParityOptions, run_parity
from sparkrt_ros.runtime.share import shared_path

CHUNKS = 3
SECONDS = 1.2


@pytest.fixture(scope='module')
def episode() -> list[Recorded]:
    """The beginning of the shipped episode."""
    with open_bag(shared_path('bags') / 'embedded_mcap') as bag:
        kinds = {name: topic.type for name, topic in bag.topics.items()}
        limit_ns = bag.start_ns + round(SECONDS * 1e9)
        return [
            Recorded(topic=m.topic, kind=kinds[m.topic], log_ns=m.log_ns, data=m.raw)
            for m in bag.messages()
            if m.log_ns < limit_ns
        ]


def actions(bag: Path) -> bytes:
    options = ParityOptions(
        bag=bag,
        robot='embedded',
        checkpoint=shared_path('checkpoints') / 'embedded_pick_place',
        candidates=(),
        replay=ReplayOptions(max_chunks=CHUNKS),
    )
    result = run_parity(options)
    (reference,) = result.arms
    assert len(result.records) == CHUNKS
    return reference.actions.tobytes()


def test_b2_every_copy_gives_bit_identical_actions(
    tmp_path: Path, episode: list[Recorded]
) -> None:
    write_mcap(tmp_path / 'plain.mcap', episode)
    write_db3(tmp_path / 'plain.db3', episode, packed=True)
    # The second half first, and neither index nor chunks: nothing but the times puts it right.
    half = len(episode) // 2
    write_mcap(
        tmp_path / 'turned.mcap', episode[half:] + episode[:half], chunk_bytes=None, index=False
    )
    split = tmp_path / 'split'
    split.mkdir()
    write_db3(split / 'x_0.db3', episode[::2])
    write_db3(split / 'x_1.db3', episode[1::2], indexed=False)
    expected = actions(tmp_path / 'plain.mcap')
    for copy in ('plain.db3', 'turned.mcap', 'split'):
        assert actions(tmp_path / copy) == expected, copy


def test_b1_a_bag_cut_short_ends_with_the_documented_exit_code(
    tmp_path: Path, episode: list[Recorded]
) -> None:
    sizes = write_mcap(tmp_path / 'whole.mcap', episode, chunk_every=40)
    data = (tmp_path / 'whole.mcap').read_bytes()
    cut = sizes[-2] + (sizes[-1] - sizes[-2]) // 3
    (tmp_path / 'cut.mcap').write_bytes(data[:cut])
    checkpoint = str(shared_path('checkpoints') / 'embedded_pick_place')
    options = ['--robot', 'embedded', '--checkpoint', checkpoint, '--max-chunks', '100']
    arms = ['--candidate', 'backend=eager,precision=fp32,threads=1', '--quiet']
    codes = [
        main(['parity', str(tmp_path / name), *options, *arms])
        for name in ('whole.mcap', 'cut.mcap')
    ]
    assert codes == [0, 4]
    assert main(['parity', str(tmp_path / 'no.mcap'), *options, *arms]) == 2
