"""How the worker asks its policy for a chunk: from which noise, going on from what plays.

Shapes: ``T`` rows of a chunk, ``A`` action size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sparkrt_ros.convert.contract import RobotContract
from sparkrt_ros.nodes.pacing import Progress
from sparkrt_ros.runtime.chunking.prefix import Playback, Prefix, PrefixSource
from sparkrt_ros.runtime.noise import chunk_noise
from sparkrt_ros.runtime.types import ActionChunk, FloatArray, Observation
from sparkrt_ros.runtime.vla_config import RtcConfig

if TYPE_CHECKING:
    from sparkrt_ros.nodes.loaded_policy import LoadedPolicy
    from sparkrt_ros.runtime.host_inputs import Continuation


@dataclass(frozen=True, kw_only=True)
class Choices:
    """What a chunk depends on beside its observation; may change between two inferences.

    continues: whether a chunk goes on from the one that plays (mode rtc).
    execution_horizon: so many of its rows are drawn towards that one.
    cfg_beta: how much classifier-free guidance counts; None: there is none.
    seed: of the noise, together with the chunk's number; None: the policy draws it.
    """

    continues: bool = False
    execution_horizon: int = RtcConfig().execution_horizon
    cfg_beta: float | None = None
    seed: int | None = None


class Predictor:
    """Asks one policy for chunks. Used by the inference thread alone, but for ``choices``.

    session_id: of this policy process. Follows the streamer in every mode, so that the mode can
    be switched at any time.
    """

    def __init__(self, loaded: LoadedPolicy, *, session_id: int, choices: Choices) -> None:
        self.choices = choices
        self._loaded = loaded
        self._source = PrefixSource(session_id=session_id)
        self._guided: float | None = None

    def follow(self, progress: Progress) -> None:
        """Note what the streamer plays."""
        self._source.follow(_playback(progress))

    def sent(self, chunk: ActionChunk) -> None:
        """A chunk was published."""
        self._source.sent(chunk)

    def restart(self) -> None:
        """A new episode: there is nothing to go on from."""
        self._source.restart()

    def take_over(self, before: Predictor, *, latencies_s: Sequence[float]) -> None:
        """Go on where another policy stops; latencies_s: of this one, as far as known."""
        self._source = before._source
        self._source.delay.restart()
        for latency_s in latencies_s:
            self._source.delay.add(latency_s)

    def prefix(self, observation_ns: int, *, epoch: int) -> Prefix | None:
        """What a chunk of ``epoch`` has to go on from; None: nothing, or it does not go on."""
        if not self.choices.continues:
            return None
        return self._source.prefix(observation_ns, epoch=epoch)

    def predict(
        self, observation: Observation, *, number: int, prefix: Prefix | None
    ) -> FloatArray:
        """Chunk ``number``, counted from 0: (T, A) float32 in policy units.

        Raises ObservationError or ActionError.
        """
        policy, choices = self._loaded.policy, self.choices
        if choices.cfg_beta is not None and choices.cfg_beta != self._guided:
            policy.guide(choices.cfg_beta)
            self._guided = choices.cfg_beta
        options = {**self._noise(number), **self._continuation(prefix)}
        rows: FloatArray = policy.predict_chunk(observation, **options)
        return rows

    def _noise(self, number: int) -> dict[str, Any]:
        shape = self._loaded.capabilities.noise_shape
        if self.choices.seed is None or not shape:
            return {}
        return {'noise': chunk_noise(self.choices.seed, number, shape)}

    def _continuation(self, prefix: Prefix | None) -> dict[str, Any]:
        if prefix is None:
            return {}
        contract, horizon = self._loaded.contract, self.choices.execution_horizon
        return {'continuation': continuation_of(prefix, contract, horizon=horizon)}


def continuation_of(prefix: Prefix, contract: RobotContract, *, horizon: int) -> Continuation:
    """A prefix as the policy takes it: in its own units, drawn towards for ``horizon`` rows.

    Behind the end of a chunk nothing is known but that the robot would stand still, which is no
    course to be drawn towards, except as far as it really will.
    """
    from sparkrt_ros.runtime.host_inputs import Continuation

    plan = prefix.plan
    return Continuation(
        actions=contract.action_to_policy(prefix.actions),
        delay=plan.delay,
        horizon=min(horizon, max(plan.known, plan.delay)),
    )


def _playback(progress: Progress) -> Playback | None:
    """What plays, or is held at its end; None where the robot is not moved by a chunk."""
    playing = progress.state == 'streaming'
    held = progress.state == 'holding' and progress.row > 0.0
    if not (playing or held) or not progress.tick_ns:
        return None
    return Playback(
        session_id=progress.session_id,
        chunk_id=progress.chunk_id,
        row=progress.row,
        at_ns=progress.tick_ns,
        playing=playing,
    )
