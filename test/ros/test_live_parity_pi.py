"""Live parity of a policy that starts from noise: the same bag and seed give the same bytes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from bag_factory import write_mcap
from parity_bags import PI_JOINTS, drive, write_pi_robot
from pi_folder import write_pi_folder

from sparkrt_ros.replay.arms import ArmSpec
from sparkrt_ros.replay.live import LiveOptions, run_live
from sparkrt_ros.replay.offline import ReplayOptions
from sparkrt_ros.runtime.errors import ConfigError

pytestmark = [pytest.mark.ros, pytest.mark.slow, pytest.mark.timeout(400)]


@pytest.fixture
def options(ros_domain, tmp_path, monkeypatch):
    monkeypatch.setenv('ROS_DOMAIN_ID', str(ros_domain))
    monkeypatch.setenv('OMP_NUM_THREADS', '1')
    write_mcap(tmp_path / 'bag.mcap', drive(seconds=2.0, names=PI_JOINTS))
    return LiveOptions(
        bag=tmp_path / 'bag.mcap',
        robot=str(write_pi_robot(tmp_path)),
        checkpoint=write_pi_folder('pi05', tmp_path / 'policy'),
        form=ArmSpec(backend='eager', threads=1),
        parameters={'prompt': 'pick up the cube', 'num_steps': 2},
        replay=ReplayOptions(max_chunks=4),
        logs=tmp_path / 'logs',
        seed=5,
    )


def test_what_the_nodes_publish_is_what_the_seed_gives_offline(options):
    first, again = run_live(options), run_live(options)
    for result in (first, again):
        assert result.band == 'pass', '\n'.join(result.lines())
        assert (result.chunks, result.chunks_identical) == (4, 4)
        assert result.commands == result.commands_identical > 20
    assert first.digest == again.digest
    # In real time a message may be lost, which is named; what was taken in gives the same bytes.
    at_rate = run_live(replace(options, rate=1.0, seed=6))
    text = '\n'.join(at_rate.lines())
    assert at_rate.chunks_identical == at_rate.chunks >= 4, text
    assert at_rate.commands_identical == at_rate.commands > 20, text


def test_in_mode_rtc_the_nodes_go_on_from_what_they_go_on_from_offline(options, tmp_path):
    folder = write_pi_folder('pi05', tmp_path / 'long', chunk_size=12, n_action_steps=6)
    parameters = {**options.parameters, 'chunking.mode': 'rtc'}
    result = run_live(replace(options, checkpoint=folder, parameters=parameters))
    text = '\n'.join(result.lines())
    assert result.band == 'pass', text
    assert (result.chunks, result.chunks_identical) == (4, 4)
    assert result.commands == result.commands_identical > 20
    assert result.receipt['mode'] == 'rtc'
    queue = run_live(replace(options, checkpoint=folder))
    assert queue.digest != result.digest, 'it went on from something'
    with pytest.raises(ConfigError, match="'rtc' with --live-rate"):
        run_live(replace(options, checkpoint=folder, parameters=parameters, rate=1.0))
