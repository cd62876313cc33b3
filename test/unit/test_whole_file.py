"""Results are written whole or not at all, and a disk that is full is told in one line."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sparkrt_ros.runtime.whole_file import FileNotWritten, write_whole


@contextmanager
def full_disk() -> Iterator[None]:
    """No file of this process may grow beyond 1000 bytes, as on a disk that is nearly full.

    For as short as possible: the output of the test run may be a file too.
    """
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_text_and_bytes_are_written_and_nothing_else_is_left(tmp_path: Path):
    write_whole(tmp_path / 'a.txt', 'grün')
    write_whole(tmp_path / 'b.bin', b'\x00\x01')
    assert (tmp_path / 'a.txt').read_text(encoding='utf-8') == 'grün'
    assert (tmp_path / 'b.bin').read_bytes() == b'\x00\x01'
    assert sorted(path.name for path in tmp_path.iterdir()) == ['a.txt', 'b.bin']


def test_a_disk_that_is_full_leaves_what_was_there(tmp_path: Path):
    path = tmp_path / 'report.html'
    path.write_text('yesterday')
    with pytest.raises(FileNotWritten) as caught, full_disk():
        write_whole(path, 'x' * 2_000_000)
    assert str(caught.value).startswith(f'{path}: found File too large; expected room for 2.0 MB')
    assert path.read_text() == 'yesterday'
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_that_is_not_there_is_named(tmp_path: Path):
    with pytest.raises(FileNotWritten, match='No such file or directory'):
        write_whole(tmp_path / 'nowhere' / 'report.html', 'text')


def test_a_link_stays_a_link(tmp_path: Path):
    (tmp_path / 'here').symlink_to(tmp_path / 'there')
    write_whole(tmp_path / 'here', 'text')
    assert (tmp_path / 'here').is_symlink()
    assert (tmp_path / 'there').read_text() == 'text'


def test_a_pipe_is_written_to(tmp_path: Path):
    pipe = tmp_path / 'pipe'
    os.mkfifo(pipe)
    reader = subprocess.Popen(['cat', str(pipe)], stdout=subprocess.PIPE)
    write_whole(pipe, 'through the pipe')
    assert reader.communicate(timeout=20)[0] == b'through the pipe'
    assert pipe.is_fifo()


def test_a_device_that_is_full_is_told():
    with pytest.raises(FileNotWritten, match='No space left on device'):
        write_whole(Path('/dev/full'), 'text')


def test_a_command_says_in_one_line_that_the_disk_is_full(act_folder: Path, tmp_path: Path):
    arguments = [str(act_folder), '--repeat', '1', '--device', 'cpu', '--json', '/dev/full']
    command = [sys.executable, '-m', 'sparkrt_ros.cli.main', 'bench', *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 2
    assert 'eager' in done.stdout, 'what was measured is not lost'
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith('sparkrt: error: /dev/full: found No space left on device')
