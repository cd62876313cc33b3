"""``sparkrt inspect``: what a policy needs and yields, as tables and as JSON."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from act_folder_factory import (
    ActFolderFactory,
    act_shapes,
    edit_json,
    feature,
    features,
    random_statistics,
    random_weights,
    tiny_config,
    write_tensors,
)

from sparkrt_ros.cli.main import main
from sparkrt_ros.runtime.checkpoint import describe_checkpoint

FRONT, WRIST = 'observation.images.front', 'observation.images.wrist'


@pytest.fixture
def inspect(capsys: pytest.CaptureFixture[str]) -> Any:
    def run(folder: Path, *options: str) -> str:
        assert main(['inspect', str(folder), *options]) == 0
        captured = capsys.readouterr()
        assert captured.err == ''
        return captured.out

    return run


def test_json_says_everything(act_folder: Path, inspect: Any) -> None:
    config = tiny_config()
    report = json.loads(inspect(act_folder, '--json'))
    count = sum(int(np.prod(shape)) for shape in act_shapes(config).values())
    assert report['model_type'] == 'act'
    assert report['cameras'] == [FRONT, WRIST]
    assert report['state_size'] == report['action_size'] == 5
    assert report['environment_state_size'] == 0
    assert (report['chunk_size'], report['n_action_steps']) == (8, 4)
    assert report['temporal_ensemble_coeff'] is None
    assert [entry['key'] for entry in report['inputs']] == list(config.input_features)
    state = report['inputs'][2]
    assert (state['type'], state['shape'], state['mode']) == ('STATE', [5], 'MEAN_STD')
    expected = random_statistics(config)['observation.state']
    assert np.float32(state['statistics']['mean']).tolist() == expected['mean'].tolist()
    assert [entry['key'] for entry in report['outputs']] == ['action']
    assert [step['name'] for step in report['preprocessor']['steps']] == [
        'rename_observations_processor',
        'to_batch_processor',
        'device_processor',
        'normalizer_processor',
    ]
    assert report['postprocessor']['file'] == 'policy_postprocessor.json'
    weights = report['weights']
    assert weights['parameters'] == count
    assert weights['parameters_by_type'] == {'F32': count}
    assert weights['tensors'] == len(act_shapes(config))
    assert weights['inference_parameters'] < count
    assert weights['size_bytes'] == (act_folder / 'model.safetensors').stat().st_size
    assert report['architecture']['vision_backbone'] == 'resnet18'
    assert report['digest'] == describe_checkpoint(act_folder).digest
    assert len(report['warnings']) == 1


def test_table_shows_what_a_user_needs(
    act_folder: Path, inspect: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv('COLUMNS', '140')
    text = inspect(act_folder)
    mean = random_statistics(tiny_config())['observation.state']['mean']
    assert f'{FRONT}, {WRIST}' in text
    assert '8 rows, of which 4 are executed' in text
    assert '3 x 64 x 64' in text
    assert f'mean {mean.min():.4g} to {mean.max():.4g}' in text
    assert describe_checkpoint(act_folder).digest in text
    assert 'to_batch_processor -> device_processor -> normalizer_processor' in text
    assert "warning: config.json: ignored device='cuda', use_amp=False" in text


def test_keys_are_whole_in_a_narrow_terminal(
    act_folder: Path, inspect: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv('COLUMNS', '80')
    lines = inspect(act_folder).splitlines()
    assert any(f' {FRONT} ' in line for line in lines)
    assert max(map(len, lines)) <= 80


def test_other_variants_are_told(
    make_act_folder: ActFolderFactory, inspect: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv('COLUMNS', '200')
    config = tiny_config(
        input_features=features(
            feature(FRONT, 'VISUAL', 3, 64, 64),
            feature('observation.environment_state', 'ENV', 4),
        ),
        n_action_steps=1,
        temporal_ensemble_coeff=0.01,
        use_vae=False,
    )
    folder = make_act_folder(config=config, rename_map={'observation.images.top': FRONT})
    write_tensors(
        folder / 'model.safetensors',
        {name: array.astype(np.float16) for name, array in random_weights(config).items()},
    )
    report = json.loads(inspect(folder, '--json'))
    assert report['temporal_ensemble_coeff'] == 0.01
    assert (report['state_size'], report['environment_state_size']) == (0, 4)
    assert report['inputs'][0]['source_key'] == 'observation.images.top'
    assert report['inputs'][1]['mode'] == 'IDENTITY'
    assert list(report['weights']['parameters_by_type']) == ['F16']
    assert report['weights']['inference_parameters'] == report['weights']['parameters']
    text = inspect(folder)
    assert 'coefficient 0.01' in text
    assert 'from observation.images.top' in text
    assert 'rename_observations_processor (observation.images.top to' in text


def test_folder_name_is_not_taken_for_markup(
    make_act_folder: ActFolderFactory, inspect: Any
) -> None:
    assert 'run[/bold]1' in inspect(make_act_folder('run[/bold]1'))


def test_broken_folder_is_one_line_and_exit_code_2(
    act_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (act_folder / 'policy_preprocessor.json').unlink()
    assert main(['inspect', str(act_folder)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ''
    assert captured.err.startswith(f'sparkrt: error: {act_folder}/policy_preprocessor.json: found')
    assert captured.err.count('\n') == 1


def test_options_reach_the_loader(
    act_folder: Path, inspect: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    edit_json(act_folder / 'config.json', lambda data: data.update(novelty=1))
    assert main(['inspect', str(act_folder)]) == 2
    assert 'unknown field novelty' in capsys.readouterr().err
    assert 'novelty is unknown and ignored' in inspect(act_folder, '--allow-unknown-fields')
    assert main(['inspect', str(act_folder), '--allow-unknown-fields', '--dataset', 'x']) == 2
    assert "dataset: found 'x'" in capsys.readouterr().err


def test_inspecting_is_quick_and_needs_no_torch(act_folder: Path) -> None:
    code = (
        'import sys; sys.modules["torch"] = None\n'
        'from sparkrt_ros.cli.main import main\n'
        f'sys.exit(main(["inspect", {str(act_folder)!r}]))'
    )
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, '-c', code], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    # Time on the processor: the wall clock also measures what else the machine is doing.
    used_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    assert used_s < 2.0
