"""The policy node with a policy that acts by an instruction: its parameters and its prompt."""

from __future__ import annotations

import pytest
from pi_folder import write_pi_folder
from swap_rig import SWAP_S, swap
from vla_rig import NODE, TASK, TINY_PI_ROBOT, PromptSender, serve_pi

pytestmark = pytest.mark.ros


@pytest.fixture(scope='module')
def pi_folder(tmp_path_factory):
    return write_pi_folder('pi05', tmp_path_factory.mktemp('pi') / 'policy')


@pytest.fixture
def lazy_folder(tmp_path_factory):
    """Chunks that last half a minute: an inference that comes sooner has another reason."""
    target = tmp_path_factory.mktemp('lazy') / 'policy'
    return write_pi_folder('pi05', target, chunk_size=600, n_action_steps=600)


@pytest.fixture
def prompt(peer):
    return PromptSender(peer)


def refused(peer, **values):
    result = peer.set_parameters_atomically(NODE, **values)
    assert not result.successful
    return result.reason


def test_without_a_prompt_it_waits_and_says_so_and_goes_on_with_the_first_one(
    start_policy, feed, pi_folder, prompt
):
    policy = serve_pi(start_policy, feed, pi_folder)
    status = policy.wait_status('waiting', timeout_s=60.0)
    assert status.reason.startswith('no prompt, and this policy acts by one')
    policy.status.wait_for(count=5)
    assert len(policy.chunks) == 0
    assert policy.status.last.failures == 0
    prompt.send(TASK)
    policy.chunks.wait_for(count=2)
    status = policy.wait_status('active')
    assert list(status.stage_names) == ['prefix', 'denoise']
    assert 0.0 < sum(status.stage_times) <= status.model_time
    assert (status.model, status.prompt, status.prompt_refused) == ('pi05', TASK, '')


def test_the_newest_prompt_counts_whoever_it_comes_from_and_the_next_inference_reads_it(
    start_policy, feed, peer, lazy_folder, prompt
):
    lengths = {'vla__state_prompt__mode': 'exact', 'vla__state_prompt__lengths': [33, 34, 36, 44]}
    policy = serve_pi(start_policy, feed, lazy_folder, prompt=TASK, **lengths)
    first = policy.chunks.wait_for(timeout_s=60.0)
    policy.status.wait_for(count=5)
    assert policy.chunks.last.chunk_id == first.chunk_id, 'the next is due in 30 s'
    prompt.send('open the door')
    policy.wait_chunk(first.chunk_id + 1, timeout_s=20.0)
    assert policy.status.wait_for().prompt == 'open the door'
    assert peer.get_parameter(NODE, 'prompt') == 'open the door'
    assert peer.set_parameters(NODE, prompt='close it')[0].successful
    policy.wait_chunk(first.chunk_id + 2, timeout_s=20.0)
    assert policy.status.wait_for().prompt == 'close it'
    prompt.send('stop')
    policy.status.wait_for(lambda m: m.prompt == 'stop')
    # Every length of a prompt was prepared: nothing failed, nothing was loaded again.
    assert policy.status.last.failures == 0
    assert policy.process.count('ready in') == 1


def test_a_prompt_that_cannot_be_is_refused_with_the_reason_and_the_old_one_serves_on(
    start_policy, feed, peer, pi_folder, prompt
):
    policy = serve_pi(start_policy, feed, pi_folder, prompt=TASK)
    policy.chunks.wait_for(timeout_s=60.0)
    sent = {
        'an empty prompt': lambda: prompt.send(''),
        'shorten the instruction': lambda: prompt.send('lift it ' * 60),
        '40000 characters': lambda: prompt.send('x' * 40_000),
        'U+0007': lambda: prompt.send('lift\x07 it'),
        'not UTF-8': lambda: prompt.send_bytes(b'lift \xff\xfe it'),
    }
    for reason, send in sent.items():
        send()
        status = policy.status.wait_for(
            lambda m, reason=reason: reason in m.prompt_refused, what=reason
        )
        assert status.prompt == TASK
    for reason, text in [
        ('an empty prompt', '  '),
        ('shorten the instruction', 'lift it ' * 60),
        ('control characters', 'lift\nit'),
    ]:
        assert reason in refused(peer, prompt=text)
    policy.process.wait_for_log('~/prompt refused, the old one serves on: prompt: found')
    policy.chunks.wait_for(count=2)
    assert policy.status.last.failures == 0
    prompt.send('open the door')
    status = policy.status.wait_for(lambda m: m.prompt == 'open the door')
    assert status.prompt_refused == ''


def test_choices_of_the_policy_swap_or_are_refused_with_the_reason(
    start_policy, feed, peer, pi_folder
):
    policy = serve_pi(start_policy, feed, pi_folder, prompt=TASK, vla__seed=3)
    policy.chunks.wait_for(timeout_s=60.0)
    assert swap(policy, peer, num_steps=3, vla__solver='midpoint').swap_time > 0.0
    swap(policy, peer, vla__cfg_beta=2.0, vla__cfg_unconditioned='do it')
    # From one strength to another nothing is built.
    assert peer.set_parameters(NODE, vla__cfg_beta=3.0)[0].successful
    policy.chunks.wait_for(count=2)
    status = policy.status.wait_for()
    assert (status.swaps, status.swap_state, status.failures) == (2, 'idle', 0)
    assert 'observation.images.top' in refused(
        peer, vla__missing_cameras=['observation.images.top']
    )
    assert 'no temporal ensembling' in refused(peer, chunking__mode='ensemble')
    assert 'one of' in refused(peer, vla__schedule='cosine')
    assert "in mode 'fixed'" in refused(peer, vla__state_prompt__lengths=[16, 32])
    # What only shows while building leaves the old policy serving.
    assert peer.set_parameters(NODE, vla__tokenizer='/nowhere')[0].successful
    failed = policy.status.wait_for(lambda m: m.swap_state == 'failed', timeout_s=SWAP_S)
    assert '/nowhere' in failed.swap_text
    assert peer.get_parameter(NODE, 'vla.tokenizer') == ''
    policy.chunks.wait_for()


def test_a_contract_may_tell_the_picture_sizes(start_policy, feed, pi_folder, tmp_path):
    robot = tmp_path / 'large.yaml'
    text = TINY_PI_ROBOT.read_text()
    robot.write_text(text.replace('resize: [64, 48]', 'resize: [80, 40]'))
    policy = serve_pi(
        start_policy,
        feed,
        pi_folder,
        prompt=TASK,
        robot=str(robot),
        vla__image_sizes='contract',
    )
    policy.chunks.wait_for(count=2, timeout_s=60.0)
    strict = serve_pi(start_policy, feed, pi_folder, prompt=TASK, robot=str(robot))
    strict.process.wait_for_log('observation.images.front as 80x40', timeout_s=60.0)


def test_act_takes_none_of_these_choices(start_policy, feed, peer):
    policy = start_policy()
    feed.start()
    policy.chunks.wait_for(timeout_s=60.0)
    assert 'choices for a act policy' in refused(peer, vla__solver='midpoint')
    assert 'choices for a act policy' in refused(peer, vla__rtc__schedule='exp')
    assert 'only Pi0.5 and Pi0' in refused(peer, vla__image_sizes='contract')
    assert 'a act policy computes its actions in one go' in refused(peer, chunking__mode='rtc')
    assert peer.set_parameters(NODE, prompt='lift', vla__seed=3)[0].successful
    policy.chunks.wait_for(count=2)
    status = policy.status.wait_for()
    assert (status.prompt, status.failures) == ('lift', 0)


def test_a_storm_of_prompts_does_no_harm_and_the_last_one_serves(
    start_policy, feed, peer, pi_folder, prompt
):
    policy = serve_pi(start_policy, feed, pi_folder, prompt=TASK)
    begin = policy.chunks.wait_for(timeout_s=60.0).chunk_id
    for number in range(200):
        prompt.send(f'pick up cube {number}' if number % 4 else '')
        if number % 40 == 39:
            assert peer.set_parameters(NODE, prompt=f'place it at {number}')[0].successful
    prompt.send('put it down')
    status = policy.status.wait_for(lambda m: m.prompt == 'put it down')
    assert status.prompt_refused == ''
    policy.chunks.wait_for(count=3)
    status = policy.status.wait_for()
    assert (status.prompt, status.failures, status.state) == ('put it down', 0, 'active')
    assert policy.chunks.last.chunk_id > begin
    assert 'Traceback' not in policy.process.log
    # The log tells of refusals at a bounded rate.
    assert 1 <= policy.process.count('~/prompt refused') < 50
