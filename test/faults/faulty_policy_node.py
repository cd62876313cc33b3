"""The policy node with a real policy whose inferences do what a file says.

FAULT: the file, read at each inference. Its words: ``slow SECONDS``, ``hang`` (until the file
changes), ``fail TEXT``, ``nan``, ``short`` (a chunk of too few joints); nothing: as the policy
does.
"""

import os
import sys
import threading
from pathlib import Path

import numpy as np

from sparkrt_ros.nodes.loaded_policy import load_from_folder
from sparkrt_ros.nodes.policy_node import PolicyNode
from sparkrt_ros.nodes.shutdown import run_node

FAULT = Path(os.environ['FAULT'])
LOOK_S = 0.02


class FaultyPolicy:
    """Passes everything on to the real policy."""

    def __init__(self, policy):
        self._policy = policy

    def __getattr__(self, name):
        return getattr(self._policy, name)

    def predict_chunk(self, observation, **options):
        word, _, text = FAULT.read_text().partition(' ')
        pause = threading.Event()  # waits without the interpreter lock, as a library does
        if word == 'fail':
            raise RuntimeError(text)
        if word == 'slow':
            pause.wait(float(text))
        while word == 'hang' and FAULT.read_text() == 'hang':
            pause.wait(LOOK_S)
        actions = np.array(self._policy.predict_chunk(observation, **options))
        if word == 'nan':
            actions[len(actions) // 2, 0] = np.nan
        return actions[:, :-1] if word == 'short' else actions


def load(folder, **options):
    return FaultyPolicy(load_from_folder(folder, **options))


if __name__ == '__main__':
    sys.exit(run_node(lambda token: PolicyNode(token, load=load)))
