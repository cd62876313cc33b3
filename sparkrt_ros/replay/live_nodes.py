"""The two live nodes as processes of their own, ready to be played to."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any

import yaml

from sparkrt_ros.demo.processes import ProcessGroup
from sparkrt_ros.runtime.share import shared_path

# Up to here no port of a domain falls into the range that Linux hands out to anybody.
MOST_DOMAINS = 100
_VARIABLES = ('ROS_DOMAIN_ID', 'ROS_AUTOMATIC_DISCOVERY_RANGE', 'FASTDDS_DEFAULT_PROFILES_FILE')


class LocalDomain(AbstractContextManager['LocalDomain']):
    """A ROS domain on this machine alone, for this process and those it starts.

    An id that is already set in the environment is kept. The variables are put back at the end.
    """

    def __enter__(self) -> LocalDomain:
        self._before = {name: os.environ.get(name) for name in _VARIABLES}
        os.environ.setdefault('ROS_DOMAIN_ID', str(1 + os.getpid() % MOST_DOMAINS))
        os.environ['ROS_AUTOMATIC_DISCOVERY_RANGE'] = 'LOCALHOST'
        profile = str(shared_path('config/fastdds.xml'))
        os.environ.setdefault('FASTDDS_DEFAULT_PROFILES_FILE', profile)
        self.number = int(os.environ['ROS_DOMAIN_ID'])
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for name, value in self._before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


class LiveNodes(AbstractContextManager['LiveNodes']):
    """Starts both nodes, simulated time and tracing switched on; leaving the context ends them.

    policy: parameters of the policy node; the streamer takes its robot from there and is
    otherwise left at its defaults. logs: folder for their output.
    """

    def __init__(self, policy: Mapping[str, Any], *, namespace: str, logs: Path) -> None:
        self._policy = {**policy, 'autostart': True, 'trace': True, 'use_sim_time': True}
        self._streamer = {
            'robot': policy['robot'],
            'autostart': True,
            'trace': True,
            'use_sim_time': True,
        }
        self._namespace = namespace.strip('/')
        self._folder = TemporaryDirectory(prefix='sparkrt_live_')
        self.processes = ProcessGroup(logs=logs, environ=os.environ)

    def __enter__(self) -> LiveNodes:
        self._start('action_streamer', self._streamer)
        self._start('policy_node', self._policy)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.processes.stop()
        self._folder.cleanup()

    def _start(self, name: str, parameters: Mapping[str, Any]) -> None:
        path = Path(self._folder.name) / f'{name}.yaml'
        path.write_text(yaml.safe_dump({'/**': {'ros__parameters': dict(parameters)}}))
        arguments = ['--ros-args', '--params-file', str(path)]
        if self._namespace:
            arguments += ['-r', f'__ns:=/{self._namespace}']
        self.processes.start(name, f'sparkrt_ros.nodes.{name}', arguments)
