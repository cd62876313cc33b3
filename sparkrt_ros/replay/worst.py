"""The pictures of the chunk in which a candidate differs most, kept while they pass by."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from sparkrt_ros.runtime.types import ImageArray


class WorstFrames:
    """One set of pictures for each pair of arms."""

    def __init__(self) -> None:
        self._errors: dict[tuple[str, str], float] = {}
        self._frames: dict[tuple[str, str], dict[str, ImageArray]] = {}

    def note(
        self, candidate: str, reference: str, error: float, images: Mapping[str, ImageArray]
    ) -> None:
        """Keep copies where ``error`` is larger than before; what is no number is largest."""
        error = float('inf') if error != error else error
        pair = (candidate, reference)
        if error > self._errors.get(pair, -1.0):
            self._errors[pair] = error
            self._frames[pair] = {key: np.array(image) for key, image in images.items()}

    def of(self, candidate: str, reference: str) -> Mapping[str, ImageArray]:
        """The pictures of a pair; none before the first chunk."""
        return self._frames.get((candidate, reference), {})
