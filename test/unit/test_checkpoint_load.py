"""A whole policy folder: what is read from it, and an error for every file that is not right."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from act_folder_factory import (
    ActFolderFactory,
    act_shapes,
    edit_json,
    feature,
    features,
    random_weights,
    tiny_config,
    write_bytes,
    write_tensors,
)
from safetensors.torch import save_file as save_torch

from sparkrt_ros.runtime.checkpoint import Checkpoint, describe_checkpoint, load_checkpoint
from sparkrt_ros.runtime.errors import CheckpointError

PRE = 'policy_preprocessor.json'
POST = 'policy_postprocessor.json'
PRE_STATE = 'policy_preprocessor_step_3_normalizer_processor.safetensors'
POST_STATE = 'policy_postprocessor_step_0_unnormalizer_processor.safetensors'


def weights_of(folder: Path) -> dict[str, np.ndarray]:
    from safetensors.numpy import load_file

    return load_file(folder / 'model.safetensors')


def test_folder_is_read_completely(act_folder: Path) -> None:
    config = tiny_config()
    checkpoint = load_checkpoint(act_folder)
    assert isinstance(checkpoint, Checkpoint)
    assert checkpoint.config == config
    assert checkpoint.folder == act_folder
    assert checkpoint.weights_file == act_folder / 'model.safetensors'
    shapes = {name: tuple(tensor.shape) for name, tensor in checkpoint.weights.items()}
    assert shapes == act_shapes(config)
    expected = random_weights(config)
    for name, tensor in checkpoint.weights.items():
        assert tensor.dtype == torch.float32
        np.testing.assert_array_equal(tensor.numpy(), expected[f'model.{name}'])


def test_description_matches_the_checkpoint_and_holds_no_weights(act_folder: Path) -> None:
    description, checkpoint = describe_checkpoint(act_folder), load_checkpoint(str(act_folder))
    assert description.digest == checkpoint.digest
    assert description.config == checkpoint.config
    assert description.warnings == checkpoint.warnings
    assert set(description.tensors) == set(checkpoint.weights)
    assert not hasattr(description, 'weights')


def test_describing_needs_no_torch(act_folder: Path) -> None:
    code = (
        'import sys; sys.modules["torch"] = None\n'
        'from sparkrt_ros.runtime.checkpoint import describe_checkpoint\n'
        f'print(describe_checkpoint({str(act_folder)!r}).digest)'
    )
    done = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == describe_checkpoint(act_folder).digest


@pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16, torch.float64])
def test_other_storage_is_cast_to_float32(act_folder: Path, dtype: torch.dtype) -> None:
    stored = {name: torch.from_numpy(a).to(dtype) for name, a in weights_of(act_folder).items()}
    (act_folder / 'model.safetensors').unlink()
    save_torch(stored, act_folder / 'model.safetensors')
    for name, tensor in load_checkpoint(act_folder).weights.items():
        assert tensor.dtype == torch.float32
        assert torch.equal(tensor, stored[f'model.{name}'].float())


@pytest.mark.parametrize('prefix', ['model._orig_mod.', '_orig_mod.model.', ''])
def test_names_of_compiled_and_bare_modules_are_cleaned(act_folder: Path, prefix: str) -> None:
    plain = load_checkpoint(act_folder).weights
    renamed = {
        prefix + name.removeprefix('model.'): a for name, a in weights_of(act_folder).items()
    }
    write_tensors(act_folder / 'model.safetensors', renamed)
    weights = load_checkpoint(act_folder).weights
    assert weights.keys() == plain.keys()
    assert all(torch.equal(weights[name], plain[name]) for name in plain)


def test_two_tensors_of_one_name_are_refused(act_folder: Path) -> None:
    weights = weights_of(act_folder)
    weights['model._orig_mod.action_head.bias'] = weights['model.action_head.bias']
    write_tensors(act_folder / 'model.safetensors', weights)
    with pytest.raises(CheckpointError, match=r'action_head\.bias: found two tensors'):
        load_checkpoint(act_folder)


def test_weights_stay_when_the_file_is_overwritten(act_folder: Path) -> None:
    path = act_folder / 'model.safetensors'
    write_bytes(path, path.read_bytes())
    weights = load_checkpoint(act_folder).weights
    before = weights['action_head.weight'].clone()
    size = path.stat().st_size
    with path.open('r+b') as stream:
        stream.write(b'\xff' * size)
    assert torch.equal(weights['action_head.weight'], before)


def test_eight_bit_weights_are_refused(act_folder: Path) -> None:
    weights = {name: torch.from_numpy(a) for name, a in weights_of(act_folder).items()}
    weights['model.action_head.bias'] = weights['model.action_head.bias'].to(torch.float8_e4m3fn)
    (act_folder / 'model.safetensors').unlink()
    save_torch(weights, act_folder / 'model.safetensors')
    with pytest.raises(CheckpointError, match=r'action_head\.bias: found type F8_E4M3'):
        load_checkpoint(act_folder)


def remove(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def resize_tensor(name: str, shape: tuple[int, ...]) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        weights = weights_of(folder)
        weights[name] = np.zeros(shape, dtype=np.float32)
        write_tensors(folder / 'model.safetensors', weights)

    return change


def drop_tensor(name: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        weights = weights_of(folder)
        del weights[name]
        write_tensors(folder / 'model.safetensors', weights)

    return change


def replace_weights(*names: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        (folder / 'model.safetensors').unlink()
        for name in names:
            (folder / name).write_bytes(b'\x80\x02}q\x00.')

    return change


GAPS = {
    'no config': (remove('config.json'), 'config.json: found no such file'),
    'no weights': (remove('model.safetensors'), 'model.safetensors: found no such file'),
    'no preprocessor': (remove(PRE), f'{PRE}: found no such file'),
    'no postprocessor': (remove(POST), f'{POST}: found no such file'),
    'no preprocessor state': (remove(PRE_STATE), f'{PRE_STATE}: found no such file'),
    'no postprocessor state': (remove(POST_STATE), f'{POST_STATE}: found no such file'),
    'pickled weights': (
        replace_weights('pytorch_model.bin'),
        'no such file, but pytorch_model.bin; expected the weights; remedy: convert to '
        'safetensors where you trust the file; pickle formats are never opened',
    ),
    'other pickles': (replace_weights('a.ckpt', 'b.pt'), 'no such file, but a.ckpt, b.pt'),
    'sharded weights': (
        replace_weights('model.safetensors.index.json'),
        'weights in several files',
    ),
    'adapter only': (replace_weights('adapter_model.safetensors'), 'a PEFT adapter'),
    'empty state': (
        lambda folder: write_bytes(folder / PRE_STATE, b''),
        f'{PRE_STATE}: found 0 bytes',
    ),
    'pointer config': (
        lambda folder: write_bytes(
            folder / 'config.json', b'version https://git-lfs.github.com/spec/v1\nsize 99\n'
        ),
        'a Git LFS pointer of 51 bytes instead of the file of 99 bytes',
    ),
    'action size': (
        resize_tensor('model.action_head.weight', (6, 32)),
        'model.action_head.weight: found shape (6, 32); expected shape (5, 32)',
    ),
    'state size': (
        resize_tensor('model.encoder_robot_state_input_proj.weight', (32, 7)),
        'found shape (32, 7); expected shape (32, 5)',
    ),
    'chunk size': (
        resize_tensor('model.decoder_pos_embed.weight', (100, 32)),
        'found shape (100, 32); expected shape (8, 32)',
    ),
    'feedforward': (
        resize_tensor('model.encoder.layers.0.linear1.weight', (65, 32)),
        'found shape (65, 32); expected shape (64, 32)',
    ),
    'number of inputs': (
        resize_tensor('model.encoder_1d_feature_pos_embed.weight', (3, 32)),
        'found shape (3, 32); expected shape (2, 32)',
    ),
    'missing head': (
        drop_tensor('model.action_head.bias'),
        'model.action_head.bias: found no such tensor',
    ),
    'missing layer': (
        lambda folder: edit_json(folder / 'config.json', lambda d: d.update(n_decoder_layers=2)),
        'model.decoder.layers.1.linear1.weight: found no such tensor',
    ),
    'other backbone': (
        lambda folder: edit_json(
            folder / 'config.json', lambda d: d.update(vision_backbone='resnet50')
        ),
        'found shape (32, 512, 1, 1); expected shape (32, 2048, 1, 1)',
    ),
}


@pytest.mark.parametrize('name', GAPS)
def test_gap_is_named_before_any_weight_is_read(
    act_folder: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    damage, text = GAPS[name]
    damage(act_folder)
    monkeypatch.setattr('safetensors.safe_open', pytest.fail)
    with pytest.raises(CheckpointError) as caught:
        load_checkpoint(act_folder)
    assert str(act_folder) in str(caught.value)
    assert text in str(caught.value)


def test_folder_that_is_none_says_how_to_get_one(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r'found nothing there.*must be downloaded first'):
        load_checkpoint('lerobot/act_aloha_sim')
    (tmp_path / 'file').write_text('x')
    with pytest.raises(CheckpointError, match='found a file'):
        load_checkpoint(tmp_path / 'file')


@pytest.mark.parametrize('inner', ['pretrained_model', 'checkpoints/last/pretrained_model'])
def test_parent_of_a_policy_folder_points_at_it(act_folder: Path, inner: str) -> None:
    parent = act_folder.parent / 'run'
    shutil.copytree(act_folder, parent / inner)
    with pytest.raises(CheckpointError, match=f'give {parent / inner} instead'):
        load_checkpoint(parent)


def test_every_variant_of_the_configuration_loads(make_act_folder: ActFolderFactory) -> None:
    environment = features(feature('observation.environment_state', 'ENV', 4))
    variants = {
        'no_vae': tiny_config(use_vae=False),
        'pre_norm': tiny_config(pre_norm=True, n_encoder_layers=2, n_decoder_layers=3),
        'environment_only': tiny_config(input_features=environment),
    }
    for name, config in variants.items():
        checkpoint = load_checkpoint(make_act_folder(name, config=config))
        assert checkpoint.config == config
        assert set(checkpoint.weights) == set(act_shapes(config))


DIGESTED = ['config.json', 'model.safetensors', PRE, POST, PRE_STATE, POST_STATE]


@pytest.mark.parametrize('name', DIGESTED)
def test_digest_changes_with_any_byte_of_any_file(act_folder: Path, name: str) -> None:
    before = describe_checkpoint(act_folder).digest
    path = act_folder / name
    data = bytearray(path.read_bytes())
    if name.endswith('.json'):
        data += b'\n'
    else:
        data[-1] ^= 1
    write_bytes(path, bytes(data))
    assert describe_checkpoint(act_folder).digest != before


def test_digest_does_not_depend_on_the_place(act_folder: Path) -> None:
    moved = act_folder.parent / 'elsewhere'
    shutil.copytree(act_folder, moved)
    (moved / 'README.md').write_text('not part of the policy')
    assert describe_checkpoint(moved).digest == describe_checkpoint(act_folder).digest


OUTSIDE = [
    '/etc/hostname',
    '../secret.safetensors',
    'sub/../../secret.safetensors',
    '..\\x',
    '',
    7,
]


@pytest.mark.parametrize('name', OUTSIDE)
@pytest.mark.parametrize('pipeline', [PRE, POST])
def test_state_file_never_leaves_the_folder(act_folder: Path, pipeline: str, name: object) -> None:
    shutil.copyfile(act_folder / PRE_STATE, act_folder.parent / 'secret.safetensors')

    def point_outside(data: dict) -> None:
        step = next(step for step in data['steps'] if 'state_file' in step)
        step['state_file'] = name

    edit_json(act_folder / pipeline, point_outside)
    with pytest.raises(CheckpointError, match=f'{pipeline}: step . .*normalizer_.*: state_file'):
        load_checkpoint(act_folder)


def test_link_that_leads_out_of_the_folder_is_refused(act_folder: Path) -> None:
    outside = act_folder.parent / 'outside.safetensors'
    os.rename(act_folder / PRE_STATE, outside)
    (act_folder / PRE_STATE).symlink_to(outside)
    with pytest.raises(CheckpointError, match=f'a link to {outside}'):
        load_checkpoint(act_folder)


def test_folder_of_a_hub_cache_is_read_through_its_links(act_folder: Path) -> None:
    plain = describe_checkpoint(act_folder).digest
    repository = act_folder.parent / 'models--someone--policy'
    blobs, snapshot = repository / 'blobs', repository / 'snapshots' / 'abc123'
    blobs.mkdir(parents=True)
    snapshot.mkdir(parents=True)
    for at, path in enumerate(sorted(act_folder.iterdir())):
        os.rename(path, blobs / f'blob{at}')
        (snapshot / path.name).symlink_to(Path('../../blobs') / f'blob{at}')
    assert load_checkpoint(snapshot).digest == plain


def test_folder_of_a_linked_installation_is_read_through_its_links(act_folder: Path) -> None:
    installed = act_folder.parent / 'share' / 'policy'
    installed.mkdir(parents=True)
    for path in act_folder.iterdir():
        (installed / path.name).symlink_to(path)
    assert load_checkpoint(installed).digest == load_checkpoint(act_folder).digest


def test_unsafe_artifact_is_named_as_unsafe(act_folder: Path) -> None:
    edit_json(
        act_folder / PRE,
        lambda data: data['steps'][0].update(artifacts={'tokenizer_name': '../../etc'}),
    )
    with pytest.raises(CheckpointError, match=r'artifacts\.tokenizer_name: .*stays inside'):
        load_checkpoint(act_folder)


def test_file_that_cannot_be_read_is_named(
    act_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sparkrt_ros.runtime.checkpoint import load

    with pytest.raises(CheckpointError, match=r'gone\.bin: found .*No such file'):
        load.digest_files(act_folder, [act_folder / 'gone.bin'])
