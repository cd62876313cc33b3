"""Start the policy node and the action streamer: two processes, one robot.

ros2 launch sparkrt policy.launch.py checkpoint:=/path/to/policy robot:=so101
"""

from pathlib import Path

from ament_index_python.packages import get_package_share_directory
from launch import LaunchDescription
from launch.actions import DeclareLaunchArgument, OpaqueFunction, SetEnvironmentVariable
from launch.substitutions import EnvironmentVariable, LaunchConfiguration
from launch_ros.actions import LifecycleNode
from launch_ros.parameter_descriptions import ParameterValue

SHARE = Path(get_package_share_directory('sparkrt'))

# Argument -> (default, description, choices). An empty value leaves the parameter file's.
ARGUMENTS = {
    'checkpoint': ('', 'Policy folder, as LeRobot wrote it; empty: from params_file.', None),
    'robot': ('', 'Robot contract: a shipped name or a YAML path; empty: from params_file.', None),
    'backend': ('', 'Execution backend; empty: from params_file.', None),
    'precision': ('', 'Precision tier; empty: from params_file.', None),
    'device': ('', 'cpu, cuda, cuda:N or auto; empty: from params_file.', None),
    'prompt': ('', 'Instruction for policies that read one; empty: from params_file.', None),
    'namespace': ('', 'Namespace of both nodes and of every relative topic.', None),
    'params_file': (str(SHARE / 'config' / 'policy.yaml'), 'Parameters of both nodes.', None),
    'use_sim_time': ('false', 'Follow /clock instead of the system clock.', ['true', 'false']),
    'autostart': ('true', 'Configure and activate the nodes at once.', ['true', 'false']),
    'dry_run': ('false', 'Send no command: publish it to ~/preview.', ['true', 'false']),
    'respawn': ('true', 'Start a node again when its process dies.', ['true', 'false']),
    'policy_nice': ('0', 'How far the policy process stands back, 0 to 19.', None),
    'log_level': ('info', 'Log level.', ['debug', 'info', 'warn', 'error', 'fatal']),
}
POLICY_OVERRIDES = ('checkpoint', 'robot', 'backend', 'precision', 'device', 'prompt')
STREAMER_OVERRIDES = ('robot',)
PREVIEW_ONLY = {'control.enabled': False}


def is_true(text):
    return text.lower() == 'true'


def overrides(values, names):
    """Return the parameters given on the command line, and those every node takes."""
    given = {name: ParameterValue(values[name], value_type=str) for name in names if values[name]}
    given['use_sim_time'] = is_true(values['use_sim_time'])
    given['autostart'] = is_true(values['autostart'])
    return given


def nodes(context):
    values = {name: LaunchConfiguration(name).perform(context) for name in ARGUMENTS}
    common = {
        'package': 'sparkrt',
        'namespace': values['namespace'],
        'output': 'screen',
        'emulate_tty': True,
        'respawn': is_true(values['respawn']),
        'respawn_delay': 1.0,
        'ros_arguments': ['--log-level', values['log_level']],
    }
    return [
        LifecycleNode(
            executable='policy_node',
            name='sparkrt',
            # Not with 0: launch would call the process after the prefix.
            prefix=f'nice -n {nice}' if (nice := int(values['policy_nice'])) else None,
            parameters=[values['params_file'], overrides(values, POLICY_OVERRIDES)],
            **common,
        ),
        LifecycleNode(
            executable='action_streamer',
            name='action_streamer',
            parameters=[
                values['params_file'],
                overrides(values, STREAMER_OVERRIDES),
                *([PREVIEW_ONLY] if is_true(values['dry_run']) else []),
            ],
            **common,
        ),
    ]


def generate_launch_description():
    declared = [
        DeclareLaunchArgument(
            name,
            default_value=default,
            description=description,
            **({'choices': choices} if choices else {}),
        )
        for name, (default, description, choices) in ARGUMENTS.items()
    ]
    # Whole camera frames need a larger shared-memory segment than the middleware's default.
    profile = SetEnvironmentVariable(
        'FASTDDS_DEFAULT_PROFILES_FILE',
        EnvironmentVariable(
            'FASTDDS_DEFAULT_PROFILES_FILE', default_value=str(SHARE / 'config' / 'fastdds.xml')
        ),
    )
    return LaunchDescription([*declared, profile, OpaqueFunction(function=nodes)])
