"""Fixtures of the tests with real ROS 2 and several processes.

Where the workspace is not built, the tests that need it are left out, so that the others run.
"""

from importlib.util import find_spec

if find_spec('rclpy') and find_spec('sparkrt'):
    from ros_fixtures import (
        feed,
        peer,
        policy,
        ros_domain,
        session_peer,
        shared_policy_process,
        spawn,
        start_policy,
    )

    __all__ = [
        'feed',
        'peer',
        'policy',
        'ros_domain',
        'session_peer',
        'shared_policy_process',
        'spawn',
        'start_policy',
    ]
else:
    collect_ignore_glob = ['test_node_*.py', 'test_streamer_*.py']
