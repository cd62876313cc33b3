"""Fixtures shared by every test folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from act_folder_factory import ActFolderFactory


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip, with the reason, what needs a GPU on a machine without one."""
    if not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker('gpu'):
                item.add_marker(pytest.mark.skip(reason='needs a CUDA device'))


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Networks of a few kilobytes only wait for each other's threads on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope='session')
def act_weights_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp('act_weights')


@pytest.fixture
def make_act_folder(tmp_path: Path, act_weights_cache: Path) -> ActFolderFactory:
    """``make_act_folder('name', config=tiny_config(...), ...)`` writes a LeRobot ACT folder.

    Its weight file is shared between tests: replace it, never write into it.
    """
    return ActFolderFactory(tmp_path, act_weights_cache)


@pytest.fixture
def act_folder(make_act_folder: ActFolderFactory) -> Path:
    """A small valid ACT folder: two 64x64 cameras, 5 joints, chunks of 8 rows."""
    return make_act_folder('act_policy')
