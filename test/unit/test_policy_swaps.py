"""From a set of parameters to the changeover, or back: with policies that are only names."""

import threading
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from types import MappingProxyType, SimpleNamespace

import pytest

pytest.importorskip('rclpy', reason='needs ROS 2')

from sparkrt_ros.nodes.inference_thread import InferenceThread
from sparkrt_ros.nodes.loaded_policy import LoadedPolicy
from sparkrt_ros.nodes.policy_parameters import POLICY_PARAMETERS, PolicySettings
from sparkrt_ros.nodes.policy_swaps import CONNECT_LIMIT_S, Candidate, PolicySwaps
from sparkrt_ros.nodes.policy_worker import Figures, Handover
from sparkrt_ros.nodes.swap_rules import acceptable, is_another_policy, target_text
from sparkrt_ros.runtime.errors import BackendError, ConfigError
from sparkrt_ros.runtime.types import Capabilities

LIMIT_S = 10.0
DEFAULTS = {spec.name: spec.default for spec in POLICY_PARAMETERS} | {'checkpoint': '/a'}
CAPABILITIES = Capabilities(
    model_type='act',
    image_shapes={'observation.images.front': (3, 4, 4)},
    state_size=2,
    environment_state_size=0,
    action_size=2,
    chunk_size=8,
    n_action_steps=4,
    supports_temporal_ensemble=True,
)


class NamedPolicy:
    def __init__(self):
        self.closed = threading.Event()

    def close(self):
        self.closed.set()


def loaded_of(settings, **capabilities):
    loaded = LoadedPolicy(
        policy=NamedPolicy(),
        capabilities=replace(CAPABILITIES, **capabilities),
        contract=None,
        binding=None,
        settings=settings,
        receipt={
            'backend': {'auto': 'fused'}.get(settings.config.backend, settings.config.backend),
            'precision': settings.config.precision,
            'digest': settings.checkpoint,
            'vla': None,
        },
        load_s=0.0,
    )
    return loaded.with_settings(settings)


@dataclass
class NamedServing:
    """``streams``: those only a policy of this folder reads; empty: the same as any other's."""

    loaded: LoadedPolicy
    streams: tuple = ()
    inputs: SimpleNamespace = field(default_factory=lambda: SimpleNamespace(destroyed=False))

    def __post_init__(self):
        self.inputs.destroy = lambda: setattr(self.inputs, 'destroyed', True)

    def reads_as(self, loaded):
        return loaded.settings.checkpoint != '/other_cameras'

    def with_policy(self, loaded):
        return replace(self, loaded=loaded)


class Stage:
    """A host whose parameters are a dictionary and whose policies are made at once, or held up."""

    def __init__(self):
        self.now_s = 0.0
        self.values = dict(DEFAULTS)
        self.log = []
        self.back = []
        self.taken = []
        self.made = []
        self.problem = None
        self.hold = threading.Event()
        self.hold.set()
        self.begun = threading.Semaphore(0)
        self.missing_streams = ()
        self.handing = []
        self.hand_over_at_once = True
        self.capabilities = {}
        self.news = threading.Condition()
        self.woken = 0
        self.thread = InferenceThread(on_failure=pytest.fail)
        self.serving = NamedServing(loaded_of(PolicySettings.of(self.values).to_load))
        self.arrived = lambda *_: None
        self.swaps = PolicySwaps(
            self,
            MappingProxyType(dict(self.values)),
            prepare=self.prepare,
            tidy=lambda: None,
            news=self.wake,
            on_failure=pytest.fail,
            clock_s=lambda: self.now_s,
        )
        self.swaps._hot._turn._interval_s = 0.0
        self.swaps.begin(MappingProxyType(dict(self.values)))

    # What the node does

    def set(self, **changes):
        """One set of parameters; a veto and the phases are not this class's business."""
        self.take({name.replace('__', '.'): value for name, value in changes.items()})

    def take(self, changes):
        changed = frozenset(n for n, v in changes.items() if self.values[n] != v)
        self.values |= changes
        if changed:
            self.swaps.changed(MappingProxyType(dict(self.values)), changed)

    def put_back(self, values):
        self.back.append(dict(values))
        self.take(values)

    def hand_over(self):
        self.handing.append(Future())
        if self.hand_over_at_once:
            self.end_inference()
        return self.handing[-1]

    def end_inference(self):
        self.handing[-1].set_result(
            Handover(pacer=None, predictor=None, progress=None, figures=Figures(), next_chunk_id=1)
        )

    def connect(self, loaded, arrived):
        return NamedServing(loaded, streams=('wrist',))

    def missing(self, serving):
        return self.missing_streams

    def explain(self, serving):
        return 'nobody publishes on /wrist'

    def take_over(self, thread, serving, handover):
        self.taken.append((serving, handover))
        self.thread, self.serving = thread, serving

    def tell(self, text, *, failed=False):
        self.log.append(text)

    def prepare(self, settings, watch):
        watch.stage('building')
        self.begun.release()
        assert self.hold.wait(LIMIT_S)
        watch.stage('warming')
        if self.problem is not None:
            raise self.problem
        self.made.append(loaded_of(settings, **self.capabilities))
        return Candidate(loaded=self.made[-1], rehearsed_s=(0.5,))

    # What a test does

    def wake(self):
        with self.news:
            self.woken += 1
            self.news.notify_all()

    def run_until(self, condition):
        """Advance whenever there are news, as the ROS thread does."""
        with self.news:
            while True:
                seen = self.woken
                self.swaps.advance()
                if condition():
                    return
                assert self.news.wait_for(lambda n=seen: self.woken > n, LIMIT_S)

    def run_until_swapped(self, count=1):
        self.run_until(lambda: len(self.taken) == count)

    def run_until_failed(self):
        self.run_until(lambda: self.swaps.report.state == 'failed')


@pytest.fixture
def stage():
    stage = Stage()
    yield stage
    stage.hold.set()
    stage.swaps.stop()
    stage.thread.end()
    assert stage.swaps.join(timeout_s=LIMIT_S)


def served(stage):
    return stage.serving.loaded.settings


def test_another_precision_takes_over_and_the_old_policy_is_closed(stage):
    old = stage.serving.loaded.policy
    stage.set(precision='bf16')
    assert stage.swaps.values['precision'] == 'fp32'
    stage.run_until_swapped()
    assert stage.swaps.values['precision'] == served(stage).config.precision == 'bf16'
    assert stage.taken[0][1].latency_s == (0.5,)
    assert old.closed.wait(LIMIT_S)
    report = stage.swaps.report
    assert (report.state, report.done, report.failed) == ('idle', 1, 0)
    assert 'swapped to precision bf16' in stage.log[-1]


def test_a_set_of_several_is_one_swap_and_takes_effect_as_a_whole(stage):
    stage.set(precision='bf16', backend='eager', prompt='lift', chunking__n_action_steps=2)
    held = stage.swaps.values
    assert (held['prompt'], held['chunking.n_action_steps'], held['backend']) == ('', 0, 'auto')
    stage.run_until_swapped()
    assert stage.swaps.values == stage.values
    assert len(stage.made) == 1
    assert stage.serving.loaded.receipt['n_action_steps'] == 2


def test_sets_one_after_the_other_in_one_request_are_one_swap(stage):
    stage.set(precision='bf16')
    stage.set(backend='eager')
    stage.run_until_swapped()
    assert len(stage.made) == 1
    assert stage.swaps.report.target == ''
    assert (served(stage).config.backend, served(stage).config.precision) == ('eager', 'bf16')


def test_a_failure_leaves_the_old_one_and_puts_the_whole_set_back(stage):
    stage.problem = BackendError('gate', found='cosine 0.1', expected='0.99')
    before = served(stage)
    stage.set(precision='bf16', prompt='lift')
    stage.run_until_failed()
    report = stage.swaps.report
    assert report.text == 'gate: found cosine 0.1; expected 0.99'
    assert (report.target, report.failed) == ('precision bf16', 1)
    assert stage.back == [{'precision': 'fp32', 'prompt': ''}]
    assert stage.values == DEFAULTS
    assert stage.swaps.values == DEFAULTS
    assert served(stage) == before
    assert stage.taken == []
    assert not stage.serving.loaded.policy.closed.is_set()
    assert 'failed, the old policy serves on: gate' in stage.log[-1]


def test_a_failure_is_told_until_the_next_swap(stage):
    stage.problem = BackendError('gate', found='x', expected='y')
    stage.set(precision='bf16')
    stage.run_until_failed()
    stage.set(prompt='lift')
    stage.swaps.advance()
    assert stage.swaps.report.state == 'failed'
    stage.problem = None
    stage.set(precision='fp16')
    stage.run_until_swapped()
    assert stage.swaps.report.state == 'idle'


def test_a_defect_while_making_is_logged_with_its_traceback(stage):
    stage.problem = ZeroDivisionError('oops')
    stage.set(precision='bf16')
    stage.run_until_failed()
    assert stage.swaps.report.text == 'ZeroDivisionError: oops'
    assert 'Traceback' in stage.log[-1]


def test_other_parameters_change_at_once_while_a_swap_is_under_way(stage):
    stage.hold.clear()
    stage.set(precision='bf16', prompt='lift')
    stage.swaps.advance()
    stage.set(chunking__inference_rate_hz=3.0)
    assert stage.swaps.values['chunking.inference_rate_hz'] == 3.0
    stage.set(prompt='drop')
    assert stage.swaps.values['prompt'] == 'drop'
    stage.hold.set()
    stage.problem = BackendError('gate', found='x', expected='y')
    stage.run_until_failed()
    assert stage.values['prompt'] == 'drop'
    assert stage.back == [{'precision': 'fp32'}]


def test_the_newest_wish_wins(stage):
    stage.hold.clear()
    stage.set(precision='bf16')
    stage.swaps.advance()
    assert stage.begun.acquire(timeout=LIMIT_S)
    stage.set(precision='fp16', prompt='lift')
    stage.swaps.advance()
    assert stage.swaps.report.target == 'precision fp16'
    stage.hold.set()
    stage.run_until_swapped()
    assert served(stage).config.precision == 'fp16'
    assert [loaded.settings.config.precision for loaded in stage.made] == ['fp16']
    assert stage.swaps.values['prompt'] == 'lift'


def test_going_back_to_what_serves_ends_the_swap_and_nothing_is_held(stage):
    stage.hold.clear()
    stage.set(precision='bf16', prompt='lift')
    stage.swaps.advance()
    assert stage.begun.acquire(timeout=LIMIT_S)
    stage.set(precision='fp32')
    stage.swaps.advance()
    assert stage.swaps.report.state == 'idle'
    assert stage.swaps.values['prompt'] == 'lift'
    stage.hold.set()
    assert stage.swaps.join(timeout_s=LIMIT_S)
    assert stage.taken == []


def test_going_back_while_the_new_policy_takes_over_is_a_swap_of_its_own(stage):
    stage.hand_over_at_once = False
    stage.set(precision='bf16')
    stage.run_until(lambda: stage.swaps.handing)
    assert 'old policy to end' in stage.swaps.report.text
    stage.set(precision='fp32', prompt='lift')
    stage.swaps.advance()
    assert stage.taken == []
    stage.hand_over_at_once = True
    stage.end_inference()
    stage.swaps.advance()
    assert [serving.loaded.settings.config.precision for serving, _ in stage.taken] == ['bf16']
    in_effect = stage.swaps.values
    assert (in_effect['precision'], in_effect['prompt']) == ('bf16', '')
    stage.run_until_swapped(2)
    assert served(stage).config.precision == 'fp32'
    assert stage.swaps.values == stage.values


def test_a_failure_after_a_swap_in_between_goes_back_to_that_one(stage):
    stage.hand_over_at_once = False
    stage.set(precision='bf16')
    stage.run_until(lambda: stage.swaps.handing)
    stage.set(backend='eager')
    stage.problem = BackendError('gate', found='x', expected='y')
    stage.end_inference()
    stage.run_until_failed()
    assert (stage.values['precision'], stage.values['backend']) == ('bf16', 'auto')
    assert served(stage).config.precision == 'bf16'


def test_a_policy_with_other_cameras_waits_for_their_pictures(stage):
    stage.missing_streams = ('wrist',)
    stage.set(checkpoint='/other_cameras')
    stage.run_until(lambda: stage.swaps.coming is not None)
    report = stage.swaps.report
    assert (report.state, report.text) == ('connecting', 'waits for wrist')
    assert stage.taken == []
    stage.missing_streams = ()
    stage.run_until_swapped()
    assert served(stage).checkpoint == '/other_cameras'
    assert not stage.serving.inputs.destroyed
    assert stage.swaps.coming is None


def test_pictures_that_never_come_fail_the_swap(stage):
    stage.missing_streams = ('wrist',)
    stage.set(checkpoint='/other_cameras')
    stage.run_until(lambda: stage.swaps.coming is not None)
    coming = stage.swaps.coming
    stage.now_s = CONNECT_LIMIT_S + 1.0
    stage.swaps.advance()
    assert stage.swaps.report.text == (
        'no usable message of wrist within 5 s: nobody publishes on /wrist'
    )
    assert coming.inputs.destroyed
    assert coming.loaded.policy.closed.wait(LIMIT_S)
    assert stage.values['checkpoint'] == '/a'


def test_a_newer_wish_ends_the_wait_for_pictures(stage):
    stage.missing_streams = ('wrist',)
    stage.set(checkpoint='/other_cameras')
    stage.run_until(lambda: stage.swaps.coming is not None)
    coming = stage.swaps.coming
    stage.set(checkpoint='/b')
    stage.run_until_swapped()
    assert served(stage).checkpoint == '/b'
    assert coming.inputs.destroyed
    assert coming.loaded.policy.closed.wait(LIMIT_S)


def test_a_mode_set_meanwhile_that_the_new_policy_cannot_follow_fails_the_swap(stage):
    stage.capabilities = {'chunk_size': 2, 'n_action_steps': 1}
    stage.hold.clear()
    stage.set(checkpoint='/b')
    stage.swaps.advance()
    stage.set(chunking__n_action_steps=8)
    stage.hold.set()
    stage.run_until_failed()
    assert 'at most the chunk size of the policy, 2' in stage.swaps.report.text
    assert stage.values['chunking.n_action_steps'] == 8
    assert stage.made[0].policy.closed.wait(LIMIT_S)


def test_the_end_of_serving_gives_the_swap_up_and_keeps_what_was_set(stage):
    stage.hold.clear()
    stage.set(precision='bf16', prompt='lift')
    stage.swaps.advance()
    assert stage.begun.acquire(timeout=LIMIT_S)
    stage.swaps.stop()
    assert 'given up' in stage.log[-1]
    assert stage.swaps.report.state == 'idle'
    assert stage.swaps.values == stage.values
    stage.hold.set()
    assert stage.swaps.join(timeout_s=LIMIT_S)
    stage.swaps.advance()
    assert (stage.taken, stage.back) == ([], [])


def test_the_end_of_serving_during_the_changeover_closes_the_new_policy(stage):
    stage.hand_over_at_once = False
    stage.set(precision='bf16')
    stage.run_until(lambda: stage.swaps.handing)
    stage.swaps.stop()
    assert stage.made[0].policy.closed.wait(LIMIT_S)
    stage.end_inference()
    stage.swaps.advance()
    assert stage.taken == []
    assert not stage.serving.loaded.policy.closed.is_set()


def test_sets_while_nothing_serves_make_nothing(stage):
    stage.swaps.stop()
    stage.set(precision='bf16')
    stage.swaps.advance()
    assert stage.swaps.values['precision'] == 'bf16'
    assert stage.made == []


def test_a_thousand_sets_end_in_the_last_with_few_attempts(stage):
    stage.swaps._hot._turn._interval_s = 0.2
    for number in range(1000):
        stage.set(precision=('bf16', 'fp16', 'fp32', 'tf32')[number % 4])
        stage.swaps.advance()
    stage.set(precision='bf16', backend='eager')
    stage.run_until(lambda: served(stage).config.backend == 'eager')
    assert served(stage).config.precision == 'bf16'
    assert len(stage.made) < 20
    assert stage.swaps.values == stage.values


# The rules


def settings(**changes):
    return PolicySettings.of({**DEFAULTS, **changes})


@pytest.mark.parametrize(
    ('wanted', 'serving', 'form', 'accepted'),
    [
        # What was asked for, or nothing.
        ({'precision': 'bf16'}, {}, ('fused', 'bf16'), True),
        ({'precision': 'bf16'}, {}, ('eager', 'bf16'), True),
        ({'precision': 'bf16'}, {}, ('fused', 'fp32'), False),
        ({'backend': 'cudagraph'}, {}, ('cudagraph', 'fp32'), True),
        ({'backend': 'cudagraph'}, {}, ('fused', 'fp32'), False),
        # Another folder, in the form asked for before.
        ({'checkpoint': '/b', 'precision': 'bf16'}, {'precision': 'bf16'}, ('x', 'bf16'), True),
        ({'checkpoint': '/b', 'precision': 'bf16'}, {'precision': 'bf16'}, ('x', 'fp32'), False),
    ],
)
def test_which_forms_would_do(wanted, serving, form, accepted):
    now = settings(**serving)
    receipt = {'backend': 'fused', 'precision': now.config.precision}
    assert acceptable(settings(**wanted), now, receipt)(*form) is accepted


def test_a_substitute_that_serves_may_stay_one():
    serving = settings(backend='cudagraph')
    receipt = {'backend': 'fused', 'precision': 'fp32'}
    accepts = acceptable(settings(backend='cudagraph', precision='bf16'), serving, receipt)
    assert accepts('fused', 'bf16')
    assert accepts('cudagraph', 'bf16')
    assert not accepts('eager', 'bf16')
    assert not accepts('fused', 'fp32')


def test_only_other_weights_or_other_sampling_are_another_policy():
    one = {'digest': 'd', 'vla': None, 'backend': 'fused'}
    assert not is_another_policy(one, {**one, 'backend': 'eager'})
    assert is_another_policy(one, {**one, 'digest': 'e'})
    assert is_another_policy({**one, 'vla': {'num_steps': 10}}, {**one, 'vla': {'num_steps': 5}})


def test_a_target_names_what_changes():
    wanted = {**DEFAULTS, 'precision': 'bf16', 'backend': 'eager', 'prompt': 'lift'}
    assert target_text(wanted, DEFAULTS) == 'backend eager, precision bf16'


def test_a_mode_that_cannot_be_is_refused_by_the_loaded_policy():
    with pytest.raises(ConfigError, match='chunk size'):
        loaded_of(settings()).with_settings(settings(**{'chunking.n_action_steps': 9}))
