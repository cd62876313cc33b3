"""From a snapshot of the buffer to the observation a policy takes.

Runs in the inference thread.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import partial
from typing import Any

from sparkrt_ros.convert.contract import RobotContract
from sparkrt_ros.convert.frame import CameraDecoder
from sparkrt_ros.nodes.observation_buffer import Sample, Snapshot
from sparkrt_ros.nodes.observation_intake import STATE, ObservationIntake, Warn
from sparkrt_ros.nodes.picture_watch import PictureWatch
from sparkrt_ros.runtime.errors import MessageError, ObservationError
from sparkrt_ros.runtime.types import Capabilities, ImageArray, Observation


@dataclass(frozen=True, kw_only=True)
class Reading:
    """An observation in the policy's units, and the snapshot it was made of."""

    observation: Observation
    snapshot: Snapshot

    @property
    def sample_stamps_ns(self) -> dict[str, int]:
        """Of each camera and each joint topic, by its name in the contract."""
        return sample_stamps_ns(self.snapshot)


class ObservationReader:
    """Takes a snapshot and decodes its pictures.

    A picture that turns out to be damaged is dropped and counted, and the one before it serves
    for as long as it is not too old.
    """

    def __init__(
        self,
        intake: ObservationIntake,
        contract: RobotContract,
        capabilities: Capabilities,
        *,
        warn: Warn,
    ) -> None:
        self.bad_messages = 0
        self._intake = intake
        self._buffer = intake.buffer
        self._contract = contract
        self._warn = warn
        self._last: dict[str, tuple[Sample, ImageArray]] = {}
        # Why the last picture of a camera was dropped, until one of its pictures decodes.
        self._undecoded: dict[str, str] = {}
        self._watches = {
            name: PictureWatch()
            for name, camera in intake.cameras.items()
            if camera.max_frozen_s is not None
        }
        self._decoders = {
            name: CameraDecoder(
                camera,
                expected=capabilities.image_shapes[camera.key],
                warn=partial(_warn_of_decoder, warn, camera.topic),
            )
            for name, camera in intake.cameras.items()
        }

    def newest_reference_ns(self, now_ns: int) -> int:
        """See ObservationBuffer. For any thread."""
        return self._buffer.newest_reference_ns(now_ns)

    def is_newer(self, snapshot: Snapshot, *, than_ns: int) -> bool:
        """Whether a snapshot shows what was not read before: a later time, and a new picture.

        Joint states alone are no news: their pictures would be older than when they were read.
        """
        if snapshot.reference_ns <= than_ns:
            return False
        last = self._last
        return not self._decoders or any(
            name not in last or last[name][0] is not snapshot.samples[name]
            for name in self._decoders
        )

    def look(self, now_ns: int) -> Snapshot:
        """The newest snapshot, its pictures not yet decoded. Raises ObservationError."""
        try:
            return self._buffer.snapshot(now_ns)
        except ObservationError as error:
            stale, fault = self._buffer.stale(now_ns), self._intake.state_fault
            if fault is not None and stale == (STATE,):
                raise fault from None
            raise _explained(error, self._refusals(stale, where=error.where)) from None

    def _refusals(self, stale: tuple[str, ...], *, where: str) -> list[str]:
        """What was wrong with the newest messages of ``stale`` streams and of ``where``.

        A camera whose pictures are all damaged is not stale: a new one has always just arrived.
        """
        refused, cameras = self._intake.refused, self._intake.cameras
        topics = re.split(', | and ', where)
        late = {name: refused[name] for name in stale if name in refused}
        damaged = {n: why for n, why in self._undecoded.items() if cameras[n].topic in topics}
        return [*(late | damaged).values()]

    def read(self, now_ns: int, *, task: str) -> Reading:
        """The newest observation whose pictures all decode.

        Raises ObservationError where a stream is missing, too old, or too far from the others,
        or where a camera has sent the same picture for too long.
        """
        while True:
            snapshot = self.look(now_ns)
            self._refuse_frozen(snapshot)
            try:
                images = self._images(snapshot)
            except _Unusable as bad:
                self._drop(bad)
                continue
            return Reading(
                observation=self._observation(snapshot, images, task), snapshot=snapshot
            )

    def _refuse_frozen(self, snapshot: Snapshot) -> None:
        for name, watch in self._watches.items():
            camera, sample = self._intake.cameras[name], snapshot.samples[name]
            unchanged_s = watch.unchanged_s(sample.payload, stamp_ns=sample.stamp_ns)
            assert camera.max_frozen_s is not None
            if unchanged_s > camera.max_frozen_s:
                raise ObservationError(
                    camera.topic,
                    found=f'the same picture for {unchanged_s:.3f} s, under new stamps',
                    expected=f'a change within {camera.max_frozen_s:g} s',
                    remedy='restart the camera driver; leave max_frozen_s out of the contract '
                    'for a camera without noise, such as a simulated one',
                )

    def _images(self, snapshot: Snapshot) -> dict[str, ImageArray]:
        return {
            self._intake.cameras[name].key: self._decode(name, snapshot.samples[name])
            for name in self._decoders
        }

    def _decode(self, name: str, sample: Sample) -> ImageArray:
        last = self._last.get(name)
        if last is not None and last[0] is sample:
            return last[1]
        try:
            image = self._decoders[name].decode(sample.payload)
        except MessageError as error:
            raise _Unusable(name, sample, error) from error
        self._last[name] = (sample, image)
        self._undecoded.pop(name, None)
        return image

    def _drop(self, bad: _Unusable) -> None:
        self.bad_messages += 1
        self._undecoded[bad.name] = bad.error.found
        self._buffer.discard(bad.name, bad.sample)
        self._warn(('bad', bad.name), f'message dropped: {bad.error}')

    def _observation(
        self, snapshot: Snapshot, images: dict[str, ImageArray], task: str
    ) -> Observation:
        state: Any = None
        if STATE in snapshot.samples:
            state = self._contract.state_to_policy(snapshot.samples[STATE].payload.values)
        return Observation(
            images=images, state=state, task=task or None, stamp_ns=snapshot.reference_ns
        )


def _explained(error: ObservationError, refusals: list[str]) -> ObservationError:
    if not refusals:
        return error
    return type(error)(
        error.where,
        found=f'{error.found}; the last message was refused: {", ".join(refusals)}',
        expected=error.expected,
        remedy=error.remedy,
    )


def sample_stamps_ns(snapshot: Snapshot) -> dict[str, int]:
    """When the samples of a snapshot were taken: camera or joint topic, by name -> stamp."""
    stamps: dict[str, int] = {}
    for name, sample in snapshot.samples.items():
        stamps |= sample.payload.stream_stamps_ns if name == STATE else {name: sample.stamp_ns}
    return stamps


def _warn_of_decoder(warn: Warn, topic: str, text: str) -> None:
    warn(('decode', topic, text), f'{topic}: {text}')


class _Unusable(Exception):
    """A stored message that cannot be decoded."""

    def __init__(self, name: str, sample: Sample, error: MessageError) -> None:
        super().__init__(str(error))
        self.name = name
        self.sample = sample
        self.error = error
