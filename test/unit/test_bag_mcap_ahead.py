"""Chunks loaded ahead: each once, in any order of asking, and no thread left behind."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from bag_factory import drive, write_mcap

from sparkrt_ros.replay import bag_mcap_ahead
from sparkrt_ros.replay.bag import open_bag
from sparkrt_ros.replay.bag_compression import DamagedData
from sparkrt_ros.replay.bag_errors import Notes
from sparkrt_ros.replay.bag_mcap_ahead import AHEAD_BLOCKS, BlockLoader
from sparkrt_ros.replay.bag_mcap_layout import load_block, read_layout
from sparkrt_ros.replay.bag_mcap_records import Block


class Rig:
    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        write_mcap(path, drive(seconds=1.0), chunk_every=9, compression='')
        self.path = path
        self.blocks = tuple(read_layout(path, Notes()).blocks)
        self.loaded: list[int] = []
        self._lock = threading.Lock()

        def load(file: object, block: Block) -> bytes:
            with self._lock:
                self.loaded.append(self.blocks.index(block))
            return load_block(file, block)  # type: ignore[arg-type]

        monkeypatch.setattr(bag_mcap_ahead, 'load_block', load)
        self.loader = BlockLoader(path, self.blocks, range(len(self.blocks)))

    def expected(self, number: int) -> bytes:
        with self.path.open('rb') as file:
            return load_block(file, self.blocks[number])


@pytest.fixture
def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Rig:
    return Rig(tmp_path / 'bag.mcap', monkeypatch)


def test_every_block_is_loaded_once_and_is_the_right_one(rig: Rig) -> None:
    count = len(rig.blocks)
    assert count > 3 * AHEAD_BLOCKS
    for number in range(count):
        assert rig.loader.load(number) == rig.expected(number)
    rig.loader.close()
    assert sorted(rig.loaded) == list(range(count))


def test_blocks_can_be_asked_for_in_any_order_and_again(rig: Rig) -> None:
    count = len(rig.blocks)
    for number in [3, 0, count - 1, 1, 1, 2, 0, 7, *range(count)]:
        assert rig.loader.load(number) == rig.expected(number)
    rig.loader.close()


def test_no_more_than_a_few_are_loaded_ahead(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.loader.load(0)
    rig.loader.close()
    assert len(rig.loaded) <= 1 + AHEAD_BLOCKS
    rig.loaded.clear()
    monkeypatch.setattr(bag_mcap_ahead, 'AHEAD_BYTES', 1)
    small = BlockLoader(rig.path, rig.blocks, range(len(rig.blocks)))
    small.load(0)
    small.close()
    assert len(rig.loaded) <= 2


def test_damage_is_raised_where_the_block_is_asked_for(rig: Rig) -> None:
    content = bytearray(rig.path.read_bytes())
    block = rig.blocks[2]
    content[block.offset + 40] ^= 0xFF
    rig.path.write_bytes(content)
    assert rig.loader.load(0)
    assert rig.loader.load(1)
    with pytest.raises(DamagedData, match='checksum'):
        rig.loader.load(2)
    assert rig.loader.load(3)
    rig.loader.close()


def test_an_iteration_given_up_leaves_no_thread(tmp_path: Path) -> None:
    write_mcap(tmp_path / 'bag.mcap', drive(seconds=1.0), chunk_every=5)
    before = set(threading.enumerate())
    with open_bag(tmp_path / 'bag.mcap') as bag:
        messages = bag.messages()
        next(messages)
        messages.close()  # type: ignore[attr-defined]
    assert set(threading.enumerate()) == before
