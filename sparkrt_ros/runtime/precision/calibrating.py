"""From observations to a form whose activations are bytes.

The fused network runs in fp32 and notes the range of every tensor; the ranges become a
``Calibration``, and that becomes the form. Which share of the values the ranges have to hold is
decided by the error of the chunks.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import numpy as np

from sparkrt_ros.runtime.kernels.recording import Recorder
from sparkrt_ros.runtime.malloc import give_back_now
from sparkrt_ros.runtime.policies.adapter import PolicyAdapter
from sparkrt_ros.runtime.policies.fused_resnet import FusedResNet
from sparkrt_ros.runtime.precision.calibration import Calibration
from sparkrt_ros.runtime.precision.samples import Samples
from sparkrt_ros.runtime.session import Session
from sparkrt_ros.runtime.types import FloatArray, Observation

COVERAGES = (1.0, 0.9999)
"""Shares of a tensor's values that its range may have to hold; the first wins a tie."""

MakeSession = Callable[[PolicyAdapter], Session]


@runtime_checkable
class CalibratableAdapter(PolicyAdapter, Protocol):
    """A policy that can run on bytes once the ranges of its tensors are known."""

    def recording(self, recorder: Recorder) -> PolicyAdapter:
        """Return the fused form in fp32 that notes its tensors in ``recorder``."""

    def calibrated(self, calibration: Calibration) -> PolicyAdapter:
        """Return the form in int8. Raises BackendError where it cannot serve."""


@dataclass(frozen=True, kw_only=True)
class Calibrated:
    """A form ready to run, and what it was made from."""

    adapter: PolicyAdapter
    session: Session
    calibration: Calibration


def calibrate(
    reference: CalibratableAdapter, samples: Samples, *, make_session: MakeSession
) -> Calibrated:
    """Return the form with the least error on the observations of the calibration.

    make_session: an executable policy from an adapter. Raises BackendError where int8 cannot
    serve here, or the observations yield no finite ranges.
    """
    recorder, wanted = _record(reference, samples, make_session)
    best, least = None, float('inf')
    for coverage in COVERAGES:
        # Of the networks before, at most the best one may still take up memory.
        gc.collect()
        calibration = Calibration(
            ranges=recorder.ranges(coverage),
            coverage=coverage,
            source=samples.source,
            observations=len(samples.calibration),
        )
        adapter = reference.calibrated(calibration)
        session = make_session(adapter)
        error = _error(session, samples.calibration, wanted)
        if best is None or error < least:
            best = Calibrated(adapter=adapter, session=session, calibration=calibration)
            least = error
        del adapter, session
    gc.collect()
    give_back_now()
    assert best is not None
    return best


def _record(
    reference: CalibratableAdapter, samples: Samples, make_session: MakeSession
) -> tuple[Recorder, list[FloatArray]]:
    """The ranges in fp32, and the chunks."""
    recorder = Recorder(COVERAGES)
    session = make_session(reference.recording(recorder))
    wanted = [session.infer_normalized(one) for one in samples.calibration]
    _note_pictures(recorder, session, samples.calibration[0])
    return recorder, wanted


def _note_pictures(recorder: Recorder, session: Session, example: Observation) -> None:
    """The ends of what pictures can be.

    Where all cameras are normalised alike, the levels between them are those of the camera.
    """
    for brightness in (0, 255):
        images = {key: np.full_like(image, brightness) for key, image in example.images.items()}
        for image in session.network_images(replace(example, images=images)):
            recorder.note_ends(FusedResNet.PIXELS, image)


def _error(
    session: Session, observations: Sequence[Observation], wanted: Sequence[FloatArray]
) -> float:
    """Mean square of the difference, over all observations."""
    found = [session.infer_normalized(observation) for observation in observations]
    return float(np.square(np.subtract(found, wanted)).mean())
