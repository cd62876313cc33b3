"""A policy folder, loaded and ready to act; the entry point for programs without ROS.

Shapes: ``T`` rows of a chunk, ``A`` action size.
"""

from __future__ import annotations

import dataclasses
import gc
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch import Tensor

from sparkrt_ros.runtime.backends.base import ExecutionBackend
from sparkrt_ros.runtime.build_watch import UNWATCHED, BuildWatch
from sparkrt_ros.runtime.checkpoint.load import Checkpoint, load_checkpoint
from sparkrt_ros.runtime.config import RuntimeConfig, SessionMode, resolve_mode
from sparkrt_ros.runtime.device import device_title, resolve_device
from sparkrt_ros.runtime.device_memory import float32_bytes, memory_explained, memory_now
from sparkrt_ros.runtime.errors import BackendError
from sparkrt_ros.runtime.host_inputs import Continuation, HostInputs
from sparkrt_ros.runtime.malloc import give_back_now
from sparkrt_ros.runtime.observation_file import read_observations
from sparkrt_ros.runtime.planning import Form, Plan, make_plan
from sparkrt_ros.runtime.policies.adapter import PolicyAdapter
from sparkrt_ros.runtime.policies.registry import make_adapter
from sparkrt_ros.runtime.precision.samples import MOST_RECORDED, Samples
from sparkrt_ros.runtime.processors.pipeline import Postprocessor, make_processors
from sparkrt_ros.runtime.processors.prompt import Instruction, make_instruction
from sparkrt_ros.runtime.session import Session, Timing
from sparkrt_ros.runtime.types import Capabilities, FloatArray, Observation
from sparkrt_ros.runtime.vla_config import VlaConfig

_DEFAULTS = RuntimeConfig()


def load_policy(
    folder: Path | str,
    *,
    config: RuntimeConfig = _DEFAULTS,
    calibration: Sequence[Observation] = (),
    watch: BuildWatch = UNWATCHED,
) -> Policy:
    """Load a policy folder as LeRobot saves it, in the best form that can be trusted.

    calibration: observations of the robot, in order of time, instead of those that
        ``config.calibration`` names; they are divided between calibrating and gating.

    Sets the CPU threads of torch, for the whole process. Raises ConfigError for choices that
    cannot be met, CheckpointError for a folder that is not whole, BackendError where the device
    has too little memory or no form serves that ``watch`` accepts.
    """
    watch.stage('building')
    device = resolve_device(config.device)
    checkpoint = load_checkpoint(Path(folder))
    if config.num_threads:
        torch.set_num_threads(config.num_threads)
    needed_bytes = float32_bytes(checkpoint.tensors)
    samples = _samples(config, calibration)
    with memory_explained('loading the policy', device=device, needed_bytes=needed_bytes):
        return _load(
            checkpoint,
            config=config,
            device=device,
            needed_bytes=needed_bytes,
            samples=samples,
            watch=watch,
        )


def _samples(config: RuntimeConfig, given: Sequence[Observation]) -> Samples | None:
    if given:
        return Samples.recorded(given, source='observations of the caller')
    if config.calibration:
        observations = read_observations(config.calibration, most=MOST_RECORDED)
        return Samples.recorded(observations, source=config.calibration)
    return None


def _load(
    checkpoint: Checkpoint,
    *,
    config: RuntimeConfig,
    device: torch.device,
    needed_bytes: int,
    samples: Samples | None,
    watch: BuildWatch,
) -> Policy:
    # Before the weights: what is missing here is told at once.
    instruction = make_instruction(checkpoint, config.vla)
    reference = make_adapter(
        checkpoint.config,
        checkpoint.weights,
        device=device,
        weights_file=str(checkpoint.weights_file),
        vla=config.vla,
    )
    mode = resolve_mode(config, reference.capabilities)
    preprocessor, postprocessor = make_processors(
        checkpoint, device=device, missing_cameras=config.vla.missing_cameras
    )

    def build(form: Form, adapter: PolicyAdapter, backend: ExecutionBackend) -> Session:
        return Session(
            adapter,
            preprocessor,
            postprocessor,
            backend,
            mode=mode,
            source_keys=checkpoint.source_keys,
            channels_last=not form.is_reference,
            inputs=_make_inputs(
                reference.capabilities,
                vla=config.vla,
                device=device,
                instruction=instruction,
                postprocessor=postprocessor,
            ),
        )

    plan = make_plan(
        reference, config=config, device=device, build=build, samples=samples, watch=watch
    )
    capabilities = dataclasses.replace(
        reference.capabilities,
        n_action_steps=mode.n_action_steps,
        temporal_ensemble_coeff=mode.temporal_ensemble_coeff,
    )
    receipt = make_receipt(checkpoint, plan=plan, mode=mode, device=device, vla=config.vla)
    return Policy(
        plan.session,
        capabilities=capabilities,
        receipt=receipt,
        needed_bytes=needed_bytes,
        instruction=instruction,
    )


def _make_inputs(
    needs: Capabilities,
    *,
    vla: VlaConfig,
    device: torch.device,
    instruction: Instruction | None,
    postprocessor: Postprocessor,
) -> HostInputs:
    return HostInputs(
        needs,
        device=device,
        instruction=instruction,
        horizon=0 if vla.rtc is None else vla.rtc.execution_horizon,
        to_model_space=postprocessor.to_model_space,
        seed=vla.seed,
        cfg_beta=vla.cfg_beta,
    )


class Policy:
    """What ``load_policy`` returns. Not thread-safe; usable as a context manager.

    needed_bytes: size of its weights, for messages about memory. instruction: what turns its
    instructions into tokens.
    """

    def __init__(
        self,
        session: Session,
        *,
        capabilities: Capabilities,
        receipt: dict[str, Any],
        needed_bytes: int = 0,
        instruction: Instruction | None = None,
    ) -> None:
        self._session: Session | None = session
        self._instruction = instruction
        self._needed_bytes = needed_bytes
        self._capabilities = capabilities
        self._receipt = receipt

    @property
    def capabilities(self) -> Capabilities:
        """What the policy needs and yields, with the choices of the configuration applied."""
        return self._capabilities

    @property
    def receipt(self) -> dict[str, Any]:
        """What serves: policy, backend, precision, device, mode, digest, warnings; a copy.

        ``regions``, while the policy is open: what the backend made of each part, and how often
        it ran.
        """
        regions = {} if self._session is None else self._session.report()
        return {**self._receipt, 'regions': regions}

    @property
    def last_timing(self) -> Timing:
        """Seconds of the last inference: preprocess_s, model_s, postprocess_s."""
        return self._open().last_timing

    @property
    def memory_bytes(self) -> dict[str, int]:
        """``weights``, as float32; ``process``, of the host; and where there is a GPU ``device``,
        what this process holds of it, and ``device peak``.
        """
        return memory_now(self._open().device, weights_bytes=self._needed_bytes)

    def step(self, observation: Observation) -> FloatArray:
        """Return the action (A,) float32 for this control step, in policy units.

        Raises ObservationError or ActionError; see ``Session.select_action``.
        """
        return self._open().select_action(observation)

    def predict_chunk(
        self,
        observation: Observation,
        *,
        noise: Tensor | FloatArray | None = None,
        continuation: Continuation | None = None,
    ) -> FloatArray:
        """Return a chunk (T, A) float32 in policy units, apart from what ``step`` does.

        noise: the random start of an iterative policy; None draws it.
        continuation: the chunk to go on from, where ``vla.rtc`` is on.
        Raises ObservationError or ActionError.
        """
        session = self._open()
        return session.predict_chunk(observation, noise=noise, continuation=continuation)

    def predict_batch(
        self, observations: Sequence[Observation], *, noise: Tensor | None = None
    ) -> FloatArray:
        """Return chunks (B, T, A) float32 in policy units, from one pass; for evaluation.

        noise: (B, ...). Raises ObservationError or ActionError.
        """
        return self._open().predict_batch(observations, noise=noise)

    def predict_both(
        self,
        observation: Observation,
        *,
        noise: Tensor | None = None,
        continuation: Continuation | None = None,
    ) -> tuple[FloatArray, FloatArray]:
        """One chunk in model space (normalised) and in policy units, from one inference.

        The second is what ``predict_chunk`` returns. Raises as it does.
        """
        session = self._open()
        return session.predict_both(observation, noise=noise, continuation=continuation)

    def guide(self, cfg_beta: float) -> None:
        """Change how much classifier-free guidance counts; nothing is prepared anew for it.

        Raises ConfigError for a policy that was loaded without guidance.
        """
        self._open().guide(cfg_beta)

    def check_task(self, task: str) -> None:
        """Raise ConfigError for an instruction that this policy would not read to its end.

        May be called by another thread than the one that uses the policy.
        """
        if self._instruction is not None:
            self._instruction.check(task)

    def reset(self) -> None:
        """Begin a new episode."""
        self._open().reset()

    def warm_up(self) -> None:
        """Do now what the first inferences would otherwise be slow for, then allow no more.

        Raises BackendError where the device has too little memory.
        """
        session = self._open()
        with memory_explained(
            'warming up', device=session.device, needed_bytes=self._needed_bytes
        ):
            session.warm_up()
        session.seal()

    def close(self) -> None:
        """Free the weights; every later use is a BackendError. Harmless when repeated."""
        if self._session is None:
            return
        self._session = None
        free_memory()

    def __enter__(self) -> Policy:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _open(self) -> Session:
        if self._session is None:
            raise BackendError('policy', found='closed', expected='open', remedy='load it again')
        return self._session


def free_memory() -> None:
    """Give back what nothing refers to any more, on the host and on the device."""
    # A session and its regions refer to each other.
    gc.collect()
    give_back_now()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def make_receipt(
    checkpoint: Checkpoint,
    *,
    plan: Plan,
    mode: SessionMode,
    device: torch.device,
    vla: VlaConfig,
) -> dict[str, Any]:
    """Plain values that say what serves and why, ready for JSON."""
    return {
        'policy': checkpoint.config.model_type,
        'folder': str(checkpoint.folder),
        'digest': checkpoint.digest,
        'backend': plan.form.backend,
        'precision': plan.form.precision,
        'device': str(device),
        'device_name': device_title(device),
        'mode': mode.name,
        'n_action_steps': mode.n_action_steps,
        'temporal_ensemble_coeff': mode.temporal_ensemble_coeff,
        'torch': torch.__version__,
        'num_threads': torch.get_num_threads(),
        'warnings': list(checkpoint.warnings),
        'vla': dataclasses.asdict(vla) if checkpoint.config.reads_instruction else None,
        **plan.receipt(),
    }
