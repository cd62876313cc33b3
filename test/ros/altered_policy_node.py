"""The policy node with a real policy that is slow or fails, as the environment says.

SLOW_S: each inference takes this much longer. SLOW_LOAD_S: so does loading. FAIL: text of the
RuntimeError of each inference. FAIL_AFTER: only after this many good ones. FAIL_LOAD: text of the
RuntimeError of loading. STRICT_GATE: no gate can be passed. QUICK_LOADS: this many policies are
loaded before these three count. TELL: print what each inference is told to go on from, as JSON.
TELL_PICTURES: print the name and CRC-32 of every picture that is inferred from, and a line for
every picture made for people. BREAK_PICTURES: making those raises.
"""

import json
import os
import sys
import threading
import zlib
from functools import partial

from sparkrt_ros.nodes import debug_images
from sparkrt_ros.nodes.loaded_policy import load_from_folder
from sparkrt_ros.nodes.policy_node import PolicyNode
from sparkrt_ros.nodes.scheduling import settle_process
from sparkrt_ros.nodes.shutdown import run_node


class AlteredPolicy:
    """Passes everything on to the real policy."""

    def __init__(self, policy):
        self._policy = policy
        self._inferences = 0

    def __getattr__(self, name):
        return getattr(self._policy, name)

    def predict_chunk(self, observation, **options):
        self._inferences += 1
        if 'TELL' in os.environ:
            tell(observation, options.get('continuation'))
        if 'TELL_PICTURES' in os.environ:
            for key, picture in observation.images.items():
                say(f'inferred from {key} {zlib.crc32(picture.tobytes())}')
        if 'FAIL' in os.environ and self._inferences > int(os.environ.get('FAIL_AFTER', '0')):
            raise RuntimeError(os.environ['FAIL'])
        work_for(float(os.environ.get('SLOW_S', '0')))
        return self._policy.predict_chunk(observation, **options)


def tell(observation, continuation):
    told = {'stamp_ns': observation.stamp_ns, 'actions': None}
    if continuation is not None:
        told |= {'actions': continuation.actions.tolist(), 'delay': continuation.delay}
    print(f'told {json.dumps(told)}', flush=True)  # noqa: T201


def work_for(seconds):
    """Take time the way a library call does: not interruptible, without the interpreter lock."""
    threading.Event().wait(seconds)


def say(text):
    print(text, flush=True)  # noqa: T201


def watch_pictures(make_message):
    """``image_message`` that tells, or raises, as the environment says."""

    def made(picture):
        say('picture made')
        if 'BREAK_PICTURES' in os.environ:
            raise RuntimeError(os.environ['BREAK_PICTURES'])
        return make_message(picture)

    return made


class Loader:
    def __init__(self):
        self._quick = int(os.environ.get('QUICK_LOADS', '0'))

    def __call__(self, folder, **options):
        say('loading')
        if self._quick > 0:
            self._quick -= 1
        else:
            self._alter()
        return AlteredPolicy(load_from_folder(folder, **options))

    def _alter(self):
        work_for(float(os.environ.get('SLOW_LOAD_S', '0')))
        if 'FAIL_LOAD' in os.environ:
            raise RuntimeError(os.environ['FAIL_LOAD'])
        if 'STRICT_GATE' in os.environ:
            from sparkrt_ros.runtime import planning

            planning.gate = partial(planning.gate, min_cosine=2.0)


if __name__ == '__main__':
    debug_images.image_message = watch_pictures(debug_images.image_message)
    sys.exit(run_node(lambda token: PolicyNode(token, load=Loader(), settle=settle_process)))
