"""Start the embedded robot with its trained policy: three processes, nothing to plug in.

ros2 launch sparkrt demo.launch.py
"""

from pathlib import Path

from ament_index_python.packages import get_package_share_directory
from launch import LaunchDescription
from launch.actions import DeclareLaunchArgument, IncludeLaunchDescription
from launch.launch_description_sources import PythonLaunchDescriptionSource
from launch.substitutions import LaunchConfiguration
from launch_ros.actions import Node

SHARE = Path(get_package_share_directory('sparkrt'))


def generate_launch_description():
    declared = [
        DeclareLaunchArgument(
            'namespace', default_value='', description='Namespace of all nodes.'
        ),
        DeclareLaunchArgument(
            'checkpoint',
            default_value=str(SHARE / 'checkpoints' / 'embedded_pick_place'),
            description='Policy folder; the shipped policy by default.',
        ),
        DeclareLaunchArgument('backend', default_value='', description='Execution backend.'),
        DeclareLaunchArgument('precision', default_value='', description='Precision tier.'),
        DeclareLaunchArgument('seed', default_value='0', description='Seed of the first episode.'),
        DeclareLaunchArgument('autostart', default_value='true', choices=['true', 'false']),
    ]
    forwarded = ('namespace', 'checkpoint', 'backend', 'precision', 'autostart')
    policy = IncludeLaunchDescription(
        PythonLaunchDescriptionSource(str(SHARE / 'launch' / 'policy.launch.py')),
        launch_arguments={
            **{name: LaunchConfiguration(name) for name in forwarded},
            'robot': 'embedded',
        }.items(),
    )
    # Declared after the include, because the robot too needs the profile the include sets.
    robot = Node(
        package='sparkrt',
        executable='sim_robot',
        name='sim_robot',
        namespace=LaunchConfiguration('namespace'),
        parameters=[{'seed': LaunchConfiguration('seed')}],
        output='screen',
    )
    return LaunchDescription([*declared, policy, robot])
