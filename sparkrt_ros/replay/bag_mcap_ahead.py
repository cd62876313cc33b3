"""Load the chunks of an MCAP file before they are wanted.

Reading, unpacking and checksums do without the interpreter's lock, so that they cost no time where
another core is free.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from sparkrt_ros.replay.bag_mcap_layout import load_block
from sparkrt_ros.replay.bag_mcap_records import Block

THREADS = 2
AHEAD_BLOCKS = 4
AHEAD_BYTES = 16 << 20


class BlockLoader:
    """Loads the blocks of one file; one thread asks, others load what will be asked for next.

    order: numbers of the blocks in the order in which they will be wanted first. A block that is
    wanted again later is loaded then.
    """

    def __init__(self, path: Path, blocks: Sequence[Block], order: Sequence[int]) -> None:
        self._path, self._blocks, self._order = path, blocks, order
        self._next = 0
        self._pending: dict[int, Future[bytes]] = {}
        self._pool: ThreadPoolExecutor | None = None

    def load(self, number: int) -> bytes:
        """The block, unpacked. Raises DamagedData, DamagedRecord."""
        future = self._pending.pop(number, None)
        if future is None and self._next < len(self._order) and self._order[self._next] == number:
            self._next += 1
        self._look_ahead()
        return self._load(number) if future is None else future.result()

    def close(self) -> None:
        """End the threads."""
        self._pending.clear()
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)

    def _look_ahead(self) -> None:
        waiting = sum(self._blocks[number].size for number in self._pending)
        while self._next < len(self._order) and len(self._pending) < AHEAD_BLOCKS:
            number = self._order[self._next]
            waiting += self._blocks[number].size
            if waiting > AHEAD_BYTES and self._pending:
                return
            if self._pool is None:
                self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix='bag')
            self._pending[number] = self._pool.submit(self._load, number)
            self._next += 1

    def _load(self, number: int) -> bytes:
        # A handle of its own: several threads read.
        with self._path.open('rb') as file:
            return load_block(file, self._blocks[number])
