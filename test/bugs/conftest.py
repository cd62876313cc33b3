"""Fixtures of the tests with real ROS 2 and several processes."""

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
