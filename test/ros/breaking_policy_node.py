"""The policy node with a real policy on a GPU that breaks the device, as the environment says.

BREAK_AFTER: after this many good inferences, the next one reads outside of an array on the device,
which ends the use of CUDA in this process.
"""

import os
import sys

from sparkrt_ros.nodes.loaded_policy import load_from_folder
from sparkrt_ros.nodes.policy_node import PolicyNode
from sparkrt_ros.nodes.shutdown import run_node


class BreakingPolicy:
    """Passes everything on to the real policy."""

    def __init__(self, policy):
        self._policy = policy
        self._left = int(os.environ['BREAK_AFTER'])

    def __getattr__(self, name):
        return getattr(self._policy, name)

    def predict_chunk(self, observation, **options):
        if self._left == 0:
            read_outside()
        self._left -= 1
        return self._policy.predict_chunk(observation, **options)


def read_outside():
    import torch

    values, outside = torch.zeros(4, device='cuda'), torch.tensor([10], device='cuda')
    values[outside]


def load(folder, **options):
    return BreakingPolicy(load_from_folder(folder, **options))


if __name__ == '__main__':
    sys.exit(run_node(lambda token: PolicyNode(token, load=load)))
