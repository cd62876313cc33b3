"""Training the embedded robot's policy, and the folder it writes."""

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from sparkrt_ros.convert.contract import check_contract, load_contract
from sparkrt_ros.convert.frame import CameraDecoder
from sparkrt_ros.runtime.checkpoint.load import load_checkpoint
from sparkrt_ros.runtime.config import RuntimeConfig
from sparkrt_ros.runtime.policies.act import ActModel
from sparkrt_ros.runtime.policy import load_policy
from sparkrt_ros.sim import evaluate, train
from sparkrt_ros.sim.arm import JOINT_NAMES, ArmSpec
from sparkrt_ros.sim.demos import FIRST_TRAINING_SEED, DemoSpec, record, shrink
from sparkrt_ros.sim.evaluate import observe, run_episode
from sparkrt_ros.sim.learner import (
    BatchPredictor,
    Demonstrations,
    Learner,
    TrainableAct,
    TrainSpec,
    act_config,
)
from sparkrt_ros.sim.rollout import rollout
from sparkrt_ros.sim.task import PickPlace

SHIPPED = Path(__file__).resolve().parents[2] / 'checkpoints' / 'embedded_pick_place'
CPU = torch.device('cpu')
DEMOS = DemoSpec()
SMALL = DemoSpec(width=64, height=48, limit_s=1.5)


@pytest.fixture(scope='module', autouse=True)
def one_thread():
    """Two threads that wait for each other on a busy machine are slower than one."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope='module')
def data():
    seeds = range(FIRST_TRAINING_SEED, FIRST_TRAINING_SEED + 2)
    return Demonstrations([record(seed, SMALL) for seed in seeds], CPU)


@pytest.fixture(scope='module')
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp('training') / 'policy'
    options = '--episodes 1 --steps 3 --batch 4 --processes 1 --evaluate 0 --device cpu'
    assert train.main(['--output', str(folder), *options.split()]) == 0
    return folder


@pytest.mark.parametrize('folder', ['trained', SHIPPED])
def test_the_loader_accepts_the_folder(folder, request):
    folder = request.getfixturevalue(folder) if isinstance(folder, str) else folder
    checkpoint = load_checkpoint(folder)
    assert checkpoint.config.model_type == 'act'
    assert list(checkpoint.config.image_features) == [
        'observation.images.front',
        'observation.images.wrist',
    ]
    assert set(checkpoint.weights) == set(ActModel(checkpoint.config).state_dict())


def test_the_folder_is_as_lerobot_writes_it(trained):
    names = {path.name for path in trained.iterdir()}
    assert names == {
        'config.json',
        'model.safetensors',
        'policy_preprocessor.json',
        'policy_preprocessor_step_3_normalizer_processor.safetensors',
        'policy_postprocessor.json',
        'policy_postprocessor_step_0_unnormalizer_processor.safetensors',
        'sparkrt_training.json',
    }
    config = json.loads((trained / 'config.json').read_text())
    assert list(config)[:4] == ['type', 'n_obs_steps', 'input_features', 'output_features']
    assert config['type'] == 'act'
    assert config['use_vae'] is False
    assert config['pretrained_backbone_weights'] is None
    steps = json.loads((trained / 'policy_preprocessor.json').read_text())['steps']
    assert [step['registry_name'] for step in steps] == [
        'rename_observations_processor',
        'to_batch_processor',
        'device_processor',
        'normalizer_processor',
    ]
    weights = load_file(trained / 'model.safetensors')
    assert all(name.startswith('model.') for name in weights)
    assert weights['model.backbone.conv1.weight'].dtype == torch.float16
    assert weights['model.backbone.bn1.running_var'].dtype == torch.float32
    stats = load_file(trained / steps[3]['state_file'])
    assert stats['observation.images.front.mean'].shape == (3, 1, 1)
    assert stats['action.std'].shape == (5,)


def test_the_shipped_policy_is_small_enough():
    assert sum(path.stat().st_size for path in SHIPPED.iterdir()) <= 28e6


def test_the_shipped_policy_fits_the_robots_contract():
    with load_policy(SHIPPED, config=RuntimeConfig(device='cpu')) as policy:
        contract = load_contract('embedded')
        check_contract(contract, policy.capabilities)
    assert contract.policy_rate_hz == PickPlace().spec.policy_rate_hz
    assert tuple(contract.action) == JOINT_NAMES
    assert tuple(entry.joint for entry in contract.state) == JOINT_NAMES
    arm = ArmSpec()
    for joint, lower, upper, speed in zip(
        contract.action_joints,
        arm.lower_rad,
        arm.upper_rad,
        arm.max_velocity_rad_s,
        strict=True,
    ):
        assert (joint.min, joint.max, joint.max_velocity) == (lower, upper, speed)


def test_the_contract_shows_the_policy_what_it_was_trained_on():
    frames = PickPlace(seed=4).render()
    for camera in load_contract('embedded').cameras:
        pixels = frames[camera.name]
        message = SimpleNamespace(
            height=240, width=320, encoding='rgb8', is_bigendian=0, step=960, data=pixels.tobytes()
        )
        decoded = CameraDecoder(camera).decode(message)
        np.testing.assert_array_equal(decoded, shrink(pixels, DEMOS.width, DEMOS.height))


@pytest.mark.slow
def test_the_shipped_policy_solves_held_out_episodes():
    with load_policy(SHIPPED, config=RuntimeConfig(device='cpu', mode='queue')) as policy:
        outcomes = [run_episode(policy, seed) for seed in range(10)]
    assert sum(outcome.success for outcome in outcomes) >= 9


def test_a_policy_that_fails_is_reported_as_such(trained, tmp_path, monkeypatch):
    spec = PickPlace().spec
    monkeypatch.setattr(
        evaluate, 'PickPlace', lambda seed: _limited(PickPlace(seed=seed), spec, 0.5)
    )
    report = tmp_path / 'report.json'
    options = ['--episodes', '2', '--device', 'cpu', '--json', str(report)]
    assert evaluate.main([str(trained), *options]) == 1
    assert [outcome['success'] for outcome in json.loads(report.read_text())] == [False, False]


def _limited(task, spec, limit_s):
    from dataclasses import replace

    task.spec = replace(spec, time_limit_s=limit_s)
    return task


def test_chunks_hold_the_last_action_after_the_end_of_an_episode(data):
    end = int(data.last[0])
    chunk = data.chunks(torch.tensor([end - 2, end]), 5)
    torch.testing.assert_close(chunk[0, :3], data.actions[end - 2 : end + 1])
    torch.testing.assert_close(chunk[0, 3:], data.actions[end].expand(2, 5))
    torch.testing.assert_close(chunk[1], data.actions[end].expand(5, 5))


def test_statistics_are_those_of_the_data(data):
    stats = data.stats()
    np.testing.assert_allclose(stats['action']['mean'], data.actions.mean(0), atol=1e-6)
    pixels = data.images['observation.images.front'].numpy() / 255.0
    mean = stats['observation.images.front']['mean'].flatten()
    np.testing.assert_allclose(mean, pixels.mean((0, 1, 2)), atol=2e-3)


def test_learning_lowers_the_loss(data):
    spec = TrainSpec(steps=30, batch=8, rate=1e-3, brightness=0.0, pixel_noise=0.0)
    learner = Learner(data, act_config(SMALL, dropout=0.0), spec, CPU)
    learner.model.train()
    losses = [float(learner._step()) for _ in range(16)]
    assert sum(losses[-4:]) < 0.8 * sum(losses[:4])


def test_the_trained_norms_compute_the_same_once_they_are_frozen():
    torch.manual_seed(0)
    config = act_config(SMALL)
    model = TrainableAct(config)
    images = [torch.randn(3, 3, 48, 64) for _ in range(2)]
    state = torch.randn(3, 5)
    model.train()
    model(images=images, state=state)
    model.eval()
    plain = ActModel(config).eval()
    plain.load_state_dict(model.inference_weights())
    with torch.inference_mode():
        expected = model(images=images, state=state)
        found = plain(images=images, state=state)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)


def test_the_batch_predictor_says_what_the_runtime_says():
    checkpoint = load_checkpoint(SHIPPED)
    stats: dict = {}
    for name, value in load_file(
        SHIPPED / 'policy_preprocessor_step_3_normalizer_processor.safetensors'
    ).items():
        feature, _, statistic = name.rpartition('.')
        stats.setdefault(feature, {})[statistic] = value
    weights = {name: value.float() for name, value in checkpoint.weights.items()}
    predict = BatchPredictor(checkpoint.config, weights, stats, CPU)
    observation = observe(PickPlace(seed=2), DEMOS)
    images = {key.rsplit('.', 1)[1]: image[None] for key, image in observation.images.items()}
    with load_policy(SHIPPED, config=RuntimeConfig(device='cpu')) as policy:
        expected = policy.predict_chunk(observation)
    np.testing.assert_allclose(predict(images, observation.state[None])[0], expected, atol=1e-4)


def test_a_delayed_rollout_uses_the_row_that_is_due():
    seen = []

    def predict(images, states):
        chunk = np.repeat(states[:, None], 40, axis=1)
        chunk[..., 0] = np.linspace(0.0, 0.39, 40)
        seen.append(len(states))
        return chunk

    task_commands = []
    original = PickPlace.step

    def spy(self, action):
        task_commands.append(round(float(action[0]), 2))
        original(self, action)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PickPlace, 'step', spy)
        rollout(predict, [0], n_action_steps=5, delay_steps=2)
    assert task_commands[:9] == [0.0, 0.01, 0.02, 0.03, 0.04, 0.05, 0.06, 0.02, 0.03]
    assert len(seen) == 120
