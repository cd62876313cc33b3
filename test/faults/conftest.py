"""Fixtures of the tests that break something under the real processes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from act_folder_factory import ActFolderFactory, tiny_config
from fault_rig import Stack
from ros_fixtures import Spawner, peer, ros_domain, session_peer, spawn
from ros_harness import Peer

__all__ = ['peer', 'ros_domain', 'session_peer', 'spawn']

# Chunks of 1.2 s, a new one every 0.2 s, and inputs that are too old before the actions end.
ROWS = 24
QUICK = (
    ('resize: [64, 64], max_age_s: 1.0', 'resize: [64, 64], max_frozen_s: 0.5, max_age_s: 0.3'),
    ('max_age_s: 1.0}', 'max_age_s: 0.3}'),
    ('hold_s: 1.0', 'hold_s: 0.5'),
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent == Path(__file__).parent:
            item.add_marker(pytest.mark.faults)


def make_stack(spawner: Spawner, peer: Peer, folder: Path, cache: Path) -> Stack:
    policy = ActFolderFactory(folder, cache)('act_policy', config=tiny_config(chunk_size=ROWS))
    made = Stack(spawner, peer, folder, policy)
    made.change_contract(*QUICK)
    return made


@pytest.fixture
def stack(spawn: Spawner, peer: Peer, tmp_path: Path, act_weights_cache: Path) -> Iterator[Stack]:
    """Not started yet; whatever it sends must be finite and inside the limits."""
    made = make_stack(spawn, peer, tmp_path, act_weights_cache)
    yield made
    made.assert_commands_are_sound()


@pytest.fixture(scope='module')
def enduring_stack(
    ros_domain: int,
    session_peer: Peer,
    tmp_path_factory: pytest.TempPathFactory,
    act_weights_cache: Path,
) -> Iterator[Stack]:
    peer = Peer(domain=ros_domain, name='fault_peer')
    spawner = Spawner(ros_domain)
    scratch = tmp_path_factory.mktemp('enduring')
    made = make_stack(spawner, peer, scratch, act_weights_cache)
    yield made
    spawner.stop()
    peer.close()


@pytest.fixture
def running(enduring_stack: Stack) -> Iterator[Stack]:
    """Both nodes in full motion: the same processes through one fault after the other."""
    stack, feed = enduring_stack, enduring_stack.feed
    if stack.policy is None:
        stack.start()
    feed.start()
    stack.wait_streaming(after_ns=stack.now_ns)
    yield stack
    feed.stop()
    stack.assert_commands_are_sound()
