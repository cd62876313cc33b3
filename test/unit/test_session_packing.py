"""What an observation must look like, and the tensors it becomes."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from session_helpers import make_capabilities

from sparkrt_ros.runtime.errors import ObservationError
from sparkrt_ros.runtime.packing import ObservationPacker, resolve_cameras
from sparkrt_ros.runtime.types import Observation

HEIGHT, WIDTH = 4, 6
CAMERAS = ('observation.images.top', 'observation.images.left.wrist')
CPU = torch.device('cpu')


@pytest.fixture
def packer() -> ObservationPacker:
    capabilities = make_capabilities(
        image_shapes=dict.fromkeys(CAMERAS, (3, HEIGHT, WIDTH)), environment_state_size=2
    )
    return ObservationPacker(capabilities, device=CPU)


@pytest.fixture
def observation() -> Observation:
    rng = np.random.default_rng(0)
    images = {key: rng.integers(0, 256, (HEIGHT, WIDTH, 3), np.uint8) for key in CAMERAS}
    return Observation(
        images=images,
        state=np.array([1, 2, 3], np.float32),
        environment_state=np.array([4, 5], np.float32),
    )


def test_images_become_planes_in_zero_to_one(
    packer: ObservationPacker, observation: Observation
) -> None:
    batch = packer.pack(packer.check(observation))
    for key, image in observation.images.items():
        expected = torch.from_numpy(image).type(torch.float32) / 255
        assert batch[key].is_contiguous()
        assert torch.equal(batch[key][0], expected.permute(2, 0, 1))


def test_vectors_get_a_batch_dimension(
    packer: ObservationPacker, observation: Observation
) -> None:
    batch = packer.pack(packer.check(observation))
    assert batch['observation.state'].tolist() == [[1, 2, 3]]
    assert batch['observation.environment_state'].tolist() == [[4, 5]]


def test_packed_tensors_share_no_memory_with_the_observation_or_each_other(
    packer: ObservationPacker, observation: Observation
) -> None:
    first = packer.pack(packer.check(observation))
    kept = {key: value.clone() for key, value in first.items()}
    for array in (*observation.images.values(), observation.state):
        array[:] = 7
    packer.pack(packer.check(observation))
    assert all(torch.equal(first[key], kept[key]) for key in kept)


def test_read_only_and_strided_images_are_taken_without_a_warning(
    packer: ObservationPacker, observation: Observation, recwarn: pytest.WarningsRecorder
) -> None:
    image = observation.images[CAMERAS[0]]
    padded = np.zeros((HEIGHT, WIDTH + 3, 3), np.uint8)
    padded[:, :WIDTH] = image
    padded.setflags(write=False)
    images = {**observation.images, CAMERAS[0]: padded[:, :WIDTH]}
    reference = packer.pack(packer.check(observation))
    batch = packer.pack(packer.check(dataclasses.replace(observation, images=images)))
    assert torch.equal(batch[CAMERAS[0]], reference[CAMERAS[0]])
    assert not recwarn.list


def test_a_float64_state_is_taken(packer: ObservationPacker, observation: Observation) -> None:
    state = np.array([0.1, 0.2, 0.3])
    batch = packer.pack(packer.check(dataclasses.replace(observation, state=state)))
    np.testing.assert_array_equal(batch['observation.state'][0], state.astype(np.float32))


def test_the_example_fits(packer: ObservationPacker) -> None:
    assert set(packer.check(packer.example())) == {
        *CAMERAS,
        'observation.state',
        'observation.environment_state',
    }


@pytest.mark.parametrize('name', ['top', 'observation.images.top'])
def test_a_camera_may_be_called_by_its_last_part(name: str) -> None:
    image = np.zeros((1, 1, 3), np.uint8)
    resolved = resolve_cameras({'wrist': image, name: image}, CAMERAS)
    assert tuple(resolved) == CAMERAS


def test_a_short_name_of_two_cameras_is_refused() -> None:
    keys = ('observation.images.left.wrist', 'observation.images.right.wrist')
    image = np.zeros((1, 1, 3), np.uint8)
    with pytest.raises(ObservationError, match=r"'wrist' names no camera"):
        resolve_cameras({'wrist': image, 'right.wrist': image}, keys)
    assert len(resolve_cameras({'left.wrist': image, 'right.wrist': image}, keys)) == 2


def test_two_names_of_one_camera_are_refused() -> None:
    image = np.zeros((1, 1, 3), np.uint8)
    with pytest.raises(ObservationError, match='names no camera of its own'):
        resolve_cameras({'top': image, CAMERAS[0]: image, 'wrist': image}, CAMERAS)


WRONG_IMAGES = {
    'another size': (np.zeros((HEIGHT, WIDTH + 1, 3), np.uint8), 'resize or crop'),
    'rows and columns exchanged': (np.zeros((WIDTH, HEIGHT, 3), np.uint8), 'resize or crop'),
    'channels first': (np.zeros((3, HEIGHT, WIDTH), np.uint8), 'transpose'),
    'grey': (np.zeros((HEIGHT, WIDTH), np.uint8), 'resize or crop'),
    'alpha': (np.zeros((HEIGHT, WIDTH, 4), np.uint8), 'resize or crop'),
    'batched': (np.zeros((1, HEIGHT, WIDTH, 3), np.uint8), 'resize or crop'),
    'float': (np.zeros((HEIGHT, WIDTH, 3), np.float32), '0 to 255'),
    'list': ([[0]], 'numpy array'),
    'tensor': (torch.zeros(HEIGHT, WIDTH, 3, dtype=torch.uint8), 'numpy array'),
}


@pytest.mark.parametrize('wrong', WRONG_IMAGES)
def test_a_wrong_image_is_refused_with_what_to_do(
    packer: ObservationPacker, observation: Observation, wrong: str
) -> None:
    image, remedy = WRONG_IMAGES[wrong]
    images = {**observation.images, CAMERAS[1]: image}
    with pytest.raises(ObservationError, match=remedy) as refused:
        packer.check(dataclasses.replace(observation, images=images))
    assert refused.value.where == CAMERAS[1]
    assert f'({HEIGHT}, {WIDTH}, 3)' in refused.value.expected


WRONG_STATES = {
    'short': (np.zeros(2, np.float32), r'float32 of shape \(2,\)'),
    'batched': (np.zeros((1, 3), np.float32), r'shape \(1, 3\)'),
    'integers': (np.zeros(3, np.int64), 'int64'),
    'half': (np.zeros(3, np.float16), 'float16'),
    'list': ([0.0, 0.0, 0.0], 'list'),
    'missing': (None, 'NoneType'),
    'nan': (np.array([0, np.nan, 0], np.float32), 'non-finite values at 1'),
    'infinite': (np.array([np.inf, 0, -np.inf], np.float32), 'non-finite values at 0, 2'),
    'beyond float32': (np.array([0, 0, 1e300]), 'non-finite values at 2'),
}


@pytest.mark.parametrize('wrong', WRONG_STATES)
@pytest.mark.filterwarnings('error')
def test_a_wrong_state_is_refused(
    packer: ObservationPacker, observation: Observation, wrong: str
) -> None:
    state, message = WRONG_STATES[wrong]
    with pytest.raises(ObservationError, match=message) as refused:
        packer.check(dataclasses.replace(observation, state=state))
    assert refused.value.where == 'observation.state'


def test_a_state_the_policy_does_not_take_is_refused(observation: Observation) -> None:
    capabilities = make_capabilities(image_shapes={}, state_size=0, environment_state_size=2)
    packer = ObservationPacker(capabilities, device=CPU)
    with pytest.raises(ObservationError, match='the policy takes none'):
        packer.check(dataclasses.replace(observation, images={}))
    arrays = packer.check(dataclasses.replace(observation, images={}, state=None))
    assert set(arrays) == {'observation.environment_state'}


@pytest.mark.parametrize('task', [None, ''])
def test_a_missing_instruction_is_refused_where_one_is_needed(task: str | None) -> None:
    capabilities = make_capabilities(image_shapes={}, state_size=0, requires_task=True)
    packer = ObservationPacker(capabilities, device=CPU)
    with pytest.raises(ObservationError, match='instruction'):
        packer.check(Observation(task=task))
    packer.check(packer.example())
