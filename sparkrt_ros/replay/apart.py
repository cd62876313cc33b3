"""A replay in a process of its own, so that it and the inferences do not share an interpreter.

Reading and sorting a bag is Python's work, and so is launching the many small kernels of a network
on a GPU. In one interpreter either would wait for the other: an inference gives the lock away at
every operation and has to wait for it again. Results are the same either way.

The child is an ordinary Python that gets its job on stdin and answers on stdout, in pickles whose
arrays travel beside them.
"""

from __future__ import annotations

import importlib
import os
import pickle
import struct
import subprocess
import sys
import traceback
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from sparkrt_ros.nodes.loaded_policy import LoadedPolicy
from sparkrt_ros.nodes.pacing import PacingConfig
from sparkrt_ros.replay.bag import open_bag
from sparkrt_ros.replay.offline import Observed, Replay, ReplayOptions, ReplayOutcome
from sparkrt_ros.runtime.errors import SparkRTError

SWITCH_INTERVAL_S = 1e-4
_COUNT = struct.Struct('<I')
_SIZE = struct.Struct('<Q')
_END_S = 5.0


class ReplayFailed(SparkRTError):
    """The process that replays a bag ended, or met something that is a defect."""


@dataclass(frozen=True, kw_only=True)
class ReplayJob:
    """What a Replay is made of, without anything that lives in one process only."""

    bag: Path
    loaded: LoadedPolicy
    options: ReplayOptions
    pacing: PacingConfig
    task: str
    max_skew_s: float

    @classmethod
    def of(cls, bag: Path, loaded: LoadedPolicy, options: ReplayOptions, **more: Any) -> ReplayJob:
        """A job for a policy that stays here."""
        needs = loaded.capabilities
        kept = ('mode', 'n_action_steps', 'temporal_ensemble_coeff')
        described: Any = replace(
            loaded,
            policy=None,  # type: ignore[arg-type]
            capabilities=replace(needs, image_shapes=dict(needs.image_shapes)),
            receipt={key: loaded.receipt[key] for key in kept},
        )
        return cls(bag=bag, loaded=described, options=options, **more)

    def run(self) -> Iterator[Observed | ReplayOutcome]:
        """The observations, and at last what became of the replay."""
        with open_bag(self.bag) as bag:
            replay = Replay(
                bag,
                self.loaded,
                self.options,
                pacing=self.pacing,
                task=self.task,
                max_skew_s=self.max_skew_s,
            )
            yield from replay
            yield replay.outcome()


class ReplayApart:
    """Like a Replay: begin a job, iterate once, then ask for the outcome. A context manager.

    Its process starts at once, so that it is ready when the job is known.
    Raises what the replay raises; ReplayFailed where its process ends by itself.
    """

    def __init__(self) -> None:
        self._outcome: ReplayOutcome | None = None
        self.position_ns = 0
        code = f'from {__name__} import main; main()'
        paths = os.pathsep.join(path for path in sys.path if path)
        self._process = subprocess.Popen(
            [sys.executable, '-c', code],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, 'PYTHONPATH': paths},
            start_new_session=True,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._orders: IO[bytes] = self._process.stdin
        self._answers: IO[bytes] = self._process.stdout

    def begin(self, job: ReplayJob) -> None:
        """Let it replay; to be called once."""
        with suppress(BrokenPipeError), self._orders:
            # Where the process has ended, the answers tell.
            send(self._orders, job)

    def __iter__(self) -> Iterator[Observed]:
        while True:
            try:
                answer = receive(self._answers)
            except EOFError:
                raise self._ended() from None
            if isinstance(answer, Observed):
                self.position_ns = answer.record.taken_ns
                yield answer
            elif isinstance(answer, _Failure):
                raise answer.error()
            else:
                self._outcome = answer
                return

    def outcome(self) -> ReplayOutcome:
        """See Replay."""
        assert self._outcome is not None, 'not yet at the end'
        return self._outcome

    def __enter__(self) -> ReplayApart:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.wait()
        with suppress(BrokenPipeError):
            self._orders.close()
        self._answers.close()

    def _ended(self) -> ReplayFailed:
        code = self._process.wait(_END_S)
        return ReplayFailed(
            'replay process',
            found=f'its end with exit code {code}',
            expected='observations',
            remedy='read what it printed; too little memory is a frequent cause',
        )


@dataclass(frozen=True, kw_only=True)
class _Failure:
    """An exception as plain values: those with arguments of their own do not travel."""

    module: str
    name: str
    text: str
    parts: tuple[str, str, str, str | None] | None

    @classmethod
    def of(cls, error: BaseException) -> _Failure:
        parts = None
        if isinstance(error, SparkRTError):
            parts = (error.where, error.found, error.expected, error.remedy)
        kind = type(error)
        text = ''.join(traceback.format_exception(error))
        return cls(module=kind.__module__, name=kind.__qualname__, text=text, parts=parts)

    def error(self) -> SparkRTError:
        if self.parts is None:
            return ReplayFailed('replay process', found=self.text, expected='no defect')
        where, found, expected, remedy = self.parts
        kind: type[SparkRTError] = getattr(importlib.import_module(self.module), self.name)
        return kind(where, found=found, expected=expected, remedy=remedy)


def send(stream: IO[bytes], value: object) -> None:
    """Write one value; the data of its arrays are not copied into the pickle."""
    buffers: list[pickle.PickleBuffer] = []
    content = pickle.dumps(value, protocol=5, buffer_callback=buffers.append)
    parts = [memoryview(content), *(buffer.raw() for buffer in buffers)]
    stream.write(_COUNT.pack(len(parts)))
    for part in parts:
        stream.write(_SIZE.pack(part.nbytes))
    for part in parts:
        stream.write(part)
    stream.flush()


def receive(stream: IO[bytes]) -> Any:
    """Read what ``send`` wrote. Raises EOFError where the stream ends."""
    (count,) = _COUNT.unpack(_exactly(stream, _COUNT.size))
    sizes = [_SIZE.unpack(_exactly(stream, _SIZE.size))[0] for _ in range(count)]
    content, *buffers = [_exactly(stream, size) for size in sizes]
    return pickle.loads(content, buffers=buffers)


def _exactly(stream: IO[bytes], size: int) -> bytearray:
    buffer = bytearray(size)
    view = memoryview(buffer)
    while view:
        got = stream.readinto(view)  # type: ignore[attr-defined]
        if not got:
            raise EOFError
        view = view[got:]
    return buffer


def main() -> None:
    """The child: one job from stdin, its answers to stdout."""
    # Threads load the bag ahead of the replay, and neither may keep the other waiting for long.
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    # Whatever prints must not get between the answers.
    with os.fdopen(os.dup(1), 'wb') as answers:
        os.dup2(2, 1)
        try:
            job = receive(sys.stdin.buffer)
        except EOFError:
            return
        try:
            for answer in job.run():
                send(answers, answer)
        except BrokenPipeError:
            # Nobody listens any more: nothing is left to do, nor to tell.
            os._exit(0)
        except BaseException as error:
            send(answers, _Failure.of(error))
