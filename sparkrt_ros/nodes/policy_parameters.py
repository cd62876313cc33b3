"""Every parameter of the policy node, and what is made of their values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from sparkrt_ros.nodes.pacing import PacingConfig
from sparkrt_ros.nodes.parameter_spec import CPUS_PARAMETER, TRACE_PARAMETER, ParameterSpec, Value
from sparkrt_ros.nodes.predictor import Choices
from sparkrt_ros.nodes.prompt_rules import check_prompt
from sparkrt_ros.nodes.vla_parameters import NO_GUIDANCE, NO_SEED, VLA_PARAMETERS, vla_choices
from sparkrt_ros.runtime.config import BACKENDS, MODES, PRECISIONS, RuntimeConfig
from sparkrt_ros.runtime.cores import spared_cores, usable_cores
from sparkrt_ros.runtime.vla_config import RtcConfig

if TYPE_CHECKING:
    from sparkrt_ros.nodes.loaded_policy import LoadedPolicy

POLICY_PARAMETERS: tuple[ParameterSpec, ...] = (
    ParameterSpec(
        name='checkpoint',
        default='',
        description='Folder of the trained policy, as LeRobot wrote it. Needed to configure.',
        kind='swap',
    ),
    ParameterSpec(
        name='robot',
        default='embedded',
        description='Robot contract: a shipped name (embedded, so101, ...) or a path to a YAML '
        'file.',
        kind='fixed',
    ),
    ParameterSpec(
        name='backend',
        default='auto',
        description='What executes the policy. auto: cudagraph on a CUDA device, fused on a CPU. '
        'Where the one asked for cannot serve, the next does, and the status says which.',
        kind='swap',
        choices=BACKENDS,
    ),
    ParameterSpec(
        name='precision',
        default='fp32',
        description='Arithmetic of the policy; a tier serves only after it has passed its gate.',
        kind='swap',
        choices=PRECISIONS,
    ),
    ParameterSpec(
        name='calibration',
        default='',
        description='File of recorded observations (.npz, see docs/precision.md) that int8 is '
        'calibrated with and every tier is judged by; empty: synthetic ones.',
        kind='swap',
    ),
    ParameterSpec(
        name='device',
        default='auto',
        description='cpu, cuda, cuda:N, or auto: the first CUDA device where there is one.',
        kind='swap',
    ),
    ParameterSpec(
        name='threads',
        default=0,
        description='CPU threads of one inference. 0: all cores but one, which is left to ROS. '
        '-1: the fastest count, measured when the node configures; results may then differ in '
        'their last bits from run to run.',
        kind='swap',
        bounds=(-1, 256),
    ),
    ParameterSpec(
        name='autostart',
        default=False,
        description='Configure and activate at start, without a lifecycle manager.',
        kind='fixed',
    ),
    ParameterSpec(
        name='chunking.mode',
        default='auto',
        description='When a new chunk is inferred. queue: when n_action_steps of the last one '
        'were consumed. ensemble: at inference_rate_hz. rtc: as queue, and each chunk is told '
        'what it goes on from (Pi0.5, Pi0). auto: what the checkpoint says.',
        kind='live',
        choices=MODES,
    ),
    ParameterSpec(
        name='chunking.n_action_steps',
        default=0,
        description='Rows of a chunk to consume before the next chunk takes over, in modes queue '
        'and rtc; 0: what the checkpoint says.',
        kind='live',
        bounds=(0, 10000),
    ),
    ParameterSpec(
        name='chunking.execution_horizon',
        default=RtcConfig().execution_horizon,
        description='Rows that a chunk is drawn towards the one that plays, in mode rtc.',
        kind='live',
        bounds=(1, 10000),
    ),
    ParameterSpec(
        name='chunking.temporal_ensemble_coeff',
        default=0.01,
        description='Weight exp(-coeff * i) of the chunks that cover one time, i = 0 for the '
        'oldest, where mode is ensemble; above 0 favours older chunks.',
        kind='live',
        bounds=(-1.0, 1.0),
    ),
    ParameterSpec(
        name='chunking.inference_rate_hz',
        default=10.0,
        description='Inferences per second in ensemble mode [Hz].',
        kind='live',
        bounds=(0.1, 200.0),
    ),
    ParameterSpec(
        name='chunking.lead_margin_s',
        default=0.02,
        description='In modes queue and rtc an inference starts earlier than its measured 95th '
        'percentile by this margin [s].',
        kind='live',
        bounds=(0.0, 1.0),
    ),
    ParameterSpec(
        name='chunking.streamer_timeout_s',
        default=1.0,
        description='Without word from an action streamer for this long, inference is paced by '
        'time alone [s].',
        kind='live',
        bounds=(0.1, 60.0),
    ),
    ParameterSpec(
        name='observation.max_skew_s',
        default=0.0,
        description='Largest difference between the stamps within one observation [s]; 0: what '
        'the robot contract says.',
        kind='live',
        bounds=(0.0, 10.0),
    ),
    ParameterSpec(
        name='observation.on_zero_stamp',
        default='contract',
        description='A message with stamp zero: refuse it, date it by its time of receipt, or do '
        'what the robot contract says for its stream.',
        kind='fixed',
        choices=('contract', 'refuse', 'receive'),
    ),
    ParameterSpec(
        name='inference.max_failures',
        default=3,
        description='Failed inferences in a row after which the process ends with a non-zero '
        'exit code; a broken CUDA context ends it at once.',
        kind='live',
        bounds=(1, 1000),
    ),
    ParameterSpec(
        name='inference.timeout_s',
        default=60.0,
        description='An inference that takes longer ends the process with a non-zero exit code, '
        'so that a new one can take over [s]; 0: never.',
        kind='live',
        bounds=(0.0, 3600.0),
    ),
    ParameterSpec(
        name='status.rate_hz',
        default=10.0,
        description='Rate of ~/status [Hz].',
        kind='live',
        bounds=(1.0, 50.0),
    ),
    CPUS_PARAMETER,
    TRACE_PARAMETER,
    *VLA_PARAMETERS,
)


SWAP_PARAMETERS = frozenset(spec.name for spec in POLICY_PARAMETERS if spec.kind == 'swap')


@dataclass(frozen=True, kw_only=True)
class PolicySettings:
    """The parameters a policy in use depends on.

    image_sizes: whose picture sizes hold, ``checkpoint`` or ``contract``.
    """

    checkpoint: str
    config: RuntimeConfig
    image_sizes: str = 'checkpoint'

    @property
    def cfg_beta(self) -> float | None:
        """How much classifier-free guidance counts; None: there is none."""
        return self.config.vla.cfg_beta

    @property
    def to_load(self) -> PolicySettings:
        """What a policy is loaded with: where it differs, another one has to be.

        How its chunks are used is left out, since that may change while it is loaded; so is the
        strength of guidance, where there is any.
        """
        vla = self.config.vla
        neutral = self.config.with_changes(
            mode='auto',
            n_action_steps=None,
            temporal_ensemble_coeff=None,
            vla=vla if vla.cfg_beta is None else replace(vla, cfg_beta=NO_GUIDANCE),
        )
        return replace(self, config=neutral)

    @classmethod
    def of(cls, values: Mapping[str, Value]) -> PolicySettings:
        """Raises ConfigError for what cannot be."""
        ensemble = values['chunking.mode'] == 'ensemble'
        coefficient = values['chunking.temporal_ensemble_coeff'] if ensemble else None
        return cls(
            checkpoint=str(values['checkpoint']),
            config=RuntimeConfig.from_mapping(
                {
                    'backend': values['backend'],
                    'precision': values['precision'],
                    'calibration': values['calibration'],
                    'device': values['device'],
                    'mode': values['chunking.mode'],
                    'n_action_steps': values['chunking.n_action_steps'] or None,
                    'temporal_ensemble_coeff': coefficient,
                    'num_threads': _threads(values),
                    'vla': vla_choices(values),
                }
            ),
            image_sizes=str(values['vla.image_sizes']),
        )


def check_values(values: Mapping[str, Value]) -> None:
    """Raise ConfigError where parameters that are right by themselves cannot go together."""
    PolicySettings.of(values)
    check_prompt(str(values['prompt']))


def pacing_config(values: Mapping[str, Value], loaded: LoadedPolicy) -> PacingConfig:
    """Pacing of ``loaded`` by its own mode and the parameters that may change at any time."""
    return PacingConfig(
        mode=loaded.receipt['mode'],
        n_action_steps=loaded.receipt['n_action_steps'],
        dt_s=1.0 / loaded.contract.policy_rate_hz,
        inference_rate_hz=_double(values, 'chunking.inference_rate_hz'),
        lead_margin_s=_double(values, 'chunking.lead_margin_s'),
        streamer_timeout_s=_double(values, 'chunking.streamer_timeout_s'),
    )


def choices_of(values: Mapping[str, Value], loaded: LoadedPolicy) -> Choices:
    """What chunks of ``loaded`` depend on beside its observations."""
    seed, horizon = values['vla.seed'], values['chunking.execution_horizon']
    assert isinstance(seed, int)
    assert isinstance(horizon, int)
    return Choices(
        continues=loaded.receipt['mode'] == 'rtc',
        execution_horizon=horizon,
        cfg_beta=loaded.settings.cfg_beta,
        seed=None if seed == NO_SEED else seed,
    )


def _threads(values: Mapping[str, Value]) -> int:
    wanted = int(values['threads'])  # type: ignore[arg-type]
    return {0: spared_cores(usable_cores()), -1: 0}.get(wanted, wanted)


def _double(values: Mapping[str, Value], name: str) -> float:
    value = values[name]
    assert isinstance(value, float)
    return value
