"""Every parameter of the action streamer."""

from __future__ import annotations

from collections.abc import Mapping

from sparkrt_ros.nodes.guard_start import MAX_BLEND_IN_S
from sparkrt_ros.nodes.parameter_spec import CPUS_PARAMETER, TRACE_PARAMETER, ParameterSpec, Value
from sparkrt_ros.runtime.chunking.interpolation import INTERPOLATIONS
from sparkrt_ros.runtime.chunking.seam import MAX_BLEND_S
from sparkrt_ros.runtime.chunking.timeline import DEFAULT_COEFF, MAX_COEFF, MODES
from sparkrt_ros.runtime.errors import ConfigError

SLOWEST_HZ = 1.0

STREAMER_PARAMETERS: tuple[ParameterSpec, ...] = (
    ParameterSpec(
        name='robot',
        default='embedded',
        description='Robot contract: a shipped name (embedded, so101, ...) or a path to a YAML '
        'file. The same as that of the policy node. Once configured, a contract is taken that '
        'differs by limits of joints, control_rate_hz and hold_s only; the same name reads the '
        'file again.',
        kind='live',
        names_file=True,
    ),
    ParameterSpec(
        name='autostart',
        default=False,
        description='Configure and activate at start, without a lifecycle manager.',
        kind='fixed',
    ),
    ParameterSpec(
        name='control.enabled',
        default=True,
        description='Send commands to the robot. false: dry run, they go to ~/preview '
        '(sensor_msgs/JointState) instead.',
        kind='live',
    ),
    ParameterSpec(
        name='control.rate_hz',
        default=0.0,
        description='Rate of commands [Hz]; 0: what the robot contract says.',
        kind='live',
        bounds=(0.0, 1000.0),
    ),
    ParameterSpec(
        name='control.hold_s',
        default=-1.0,
        description='How long the last command is repeated after actions or joint states fail to '
        'come; then nothing is sent [s]. -1: what the robot contract says.',
        kind='live',
        bounds=(-1.0, 3600.0),
    ),
    ParameterSpec(
        name='control.realtime_priority',
        default=0,
        description='SCHED_FIFO priority of the control thread, 1 to 99, where the system permits '
        'it; the ROS thread of the streamer gets one less. 0: none.',
        kind='live',
        bounds=(0, 99),
    ),
    ParameterSpec(
        name='control.at_once',
        default=True,
        description='Send the first command of a new chunk as soon as it has arrived, up to half '
        'a period early; the periods go on from there. false: when the next command is due.',
        kind='live',
    ),
    ParameterSpec(
        name='chunking.mode',
        default='auto',
        description='How overlapping chunks are played. queue: the newest from its arrival on. '
        'ensemble: their weighted mean. rtc: as queue, for policies that continue the chunk '
        'before. weighted_average, average, conservative: 0.7, 0.5, 0.3 of the new chunk, the '
        'rest of the course before; latest_only: as queue. auto: as the policy node reports, '
        'queue until it does.',
        kind='live',
        choices=('auto', *MODES),
    ),
    ParameterSpec(
        name='chunking.temporal_ensemble_coeff',
        default=DEFAULT_COEFF,
        description='Chunk i, counted from the oldest, weighs exp(-coeff * i) in ensemble mode: '
        'above 0 older chunks weigh more, below 0 newer ones. With mode auto the policy node '
        'decides, like the mode.',
        kind='live',
        bounds=(-MAX_COEFF, MAX_COEFF),
    ),
    ParameterSpec(
        name='chunking.interpolation',
        default='linear',
        description='Between the rows of a chunk: linear, or cubic, which overshoots no row.',
        kind='live',
        choices=INTERPOLATIONS,
    ),
    ParameterSpec(
        name='chunking.blend_s',
        default=0.2,
        description='Time in which commands go over from one chunk to the next without a jump '
        '[s]; 0: they jump.',
        kind='live',
        bounds=(0.0, MAX_BLEND_S),
    ),
    ParameterSpec(
        name='guard.velocity_scale',
        default=1.0,
        description="Fraction of the contract's velocity limits that commands may use.",
        kind='live',
        bounds=(0.01, 1.0),
    ),
    ParameterSpec(
        name='guard.start_max_error',
        default=0.0,
        description='Refuse to start moving while the first target of a joint is further than '
        'this from its measured position [rad or m]; 0: move there within the velocity limit.',
        kind='live',
        bounds=(0.0, 10.0),
    ),
    ParameterSpec(
        name='guard.blend_in_s',
        default=0.5,
        description='Time in which commands go over from the measured pose to the course, at the '
        'start and after a pause, and from the held command after a hold [s]; longer where the '
        'limits ask for it. 0: within the limits alone.',
        kind='live',
        bounds=(0.0, MAX_BLEND_IN_S),
    ),
    ParameterSpec(
        name='robot_description',
        default='',
        description='URDF of the robot, as text; where its joint limits are tighter than those '
        'of the contract, they hold. Empty: the contract alone.',
        kind='fixed',
    ),
    ParameterSpec(
        name='status.rate_hz',
        default=5.0,
        description='Rate of ~/status [Hz].',
        kind='live',
        bounds=(1.0, 50.0),
    ),
    CPUS_PARAMETER,
    TRACE_PARAMETER,
)


def check_values(values: Mapping[str, Value]) -> None:
    """Raise ConfigError for values inside their bounds that still mean nothing."""
    rate_hz = float(values['control.rate_hz'])  # type: ignore[arg-type]
    if 0.0 < rate_hz < SLOWEST_HZ:
        raise ConfigError(
            "parameter 'control.rate_hz'",
            found=f'{rate_hz} Hz',
            expected=f'0 (what the robot contract says), or at least {SLOWEST_HZ:g} Hz',
        )
    hold_s = float(values['control.hold_s'])  # type: ignore[arg-type]
    if -1.0 < hold_s < 0.0:
        raise ConfigError(
            "parameter 'control.hold_s'",
            found=f'{hold_s} s',
            expected='-1 (what the robot contract says), or 0 s and more',
        )
