"""E3: an integer where a double is declared; strings, NaN and the like; at start and later."""

import pytest
from ros_harness import executable

pytestmark = pytest.mark.ros


def start_with(spawn, tmp_path, text, name='chunking.inference_rate_hz'):
    path = tmp_path / 'parameters.yaml'
    path.write_text(f'sparkrt:\n  ros__parameters:\n    {name}: {text}\n')
    return spawn([executable('policy_node'), '--ros-args', '--params-file', str(path)])


def test_an_integer_in_the_file_becomes_a_double(spawn, peer, tmp_path):
    start_with(spawn, tmp_path, '50')
    value = peer.get_parameter('/sparkrt', 'chunking.inference_rate_hz')
    assert type(value) is float
    assert value == 50.0


@pytest.mark.parametrize(
    ('text', 'given'),
    [
        ('"50"', "string '50'; expected double"),
        ('true', 'bool True; expected double'),
        ('.nan', 'double nan; expected a finite double'),
        ('.inf', 'double inf; expected a finite double'),
        ('0.0', 'double 0.0; expected double between 0.1 and 200'),
        ('[1.0]', r'double_array \(1.0,\); expected double'),
    ],
)
def test_a_wrong_value_in_the_file_ends_the_start(spawn, tmp_path, text, given):
    process = start_with(spawn, tmp_path, text)
    assert process.wait() == 1
    line = process.wait_for_log(rf"'chunking.inference_rate_hz': found {given}")
    assert line.startswith('cannot start: ')
    assert 'Traceback' not in process.log


def test_a_file_that_is_no_parameter_file_ends_the_start(spawn, tmp_path):
    process = start_with(spawn, tmp_path, '[1, two, 3.0')
    assert process.wait() == 1
    assert 'cannot start: ' in process.log
    assert 'Traceback' not in process.log


def test_a_misspelt_name_in_the_file_is_pointed_out(spawn, tmp_path):
    process = start_with(spawn, tmp_path, '5.0', name='chunking.inference_rate')
    process.wait_for_log(r"unknown parameter 'chunking.inference_rate'.*inference_rate_hz")


def test_a_wrong_value_at_run_time_is_refused_with_the_reason_and_the_old_one_kept(spawn, peer):
    spawn([executable('policy_node')])
    name = 'chunking.inference_rate_hz'
    assert peer.set_parameters('/sparkrt', chunking__inference_rate_hz=7)[0].successful
    assert peer.get_parameter('/sparkrt', name) == 7.0
    for value, reason in [
        ('9', "'chunking.inference_rate_hz': found string '9'; expected double"),
        (True, 'found bool True; expected double'),
        (float('nan'), 'nan'),
        (1000.0, '1000.0'),
    ]:
        result = peer.set_parameters('/sparkrt', chunking__inference_rate_hz=value)[0]
        assert not result.successful
        assert reason in result.reason
        assert name in result.reason
        assert peer.get_parameter('/sparkrt', name) == 7.0


def test_a_set_of_parameters_is_all_or_nothing(spawn, peer):
    spawn([executable('policy_node')])
    result = peer.set_parameters_atomically(
        '/sparkrt', chunking__inference_rate_hz=5.0, chunking__mode='both'
    )
    assert not result.successful
    assert "'chunking.mode': found string 'both'; expected one of" in result.reason
    assert peer.get_parameter('/sparkrt', 'chunking.inference_rate_hz') == 10.0


def start_streamer_with(spawn, tmp_path, name, text):
    path = tmp_path / 'streamer.yaml'
    values = f'    autostart: true\n    {name}: {text}\n'
    path.write_text(f'action_streamer:\n  ros__parameters:\n{values}')
    return spawn([executable('action_streamer'), '--ros-args', '--params-file', str(path)])


def test_an_integer_rate_of_the_streamer_becomes_a_double(spawn, peer, tmp_path):
    start_streamer_with(spawn, tmp_path, 'control.rate_hz', '50')
    value = peer.get_parameter('/action_streamer', 'control.rate_hz')
    assert type(value) is float
    assert value == 50.0


@pytest.mark.parametrize(
    ('name', 'text', 'given'),
    [
        ('control.rate_hz', '"50"', "string '50'; expected double"),
        ('control.rate_hz', '.nan', 'double nan; expected a finite double'),
        ('control.hold_s', '[0, 0]', r'integer_array \(0, 0\); expected double'),
        ('control.enabled', '1', 'integer 1; expected bool'),
        ('control.realtime_priority', '10.5', r'double 10.5; expected integer'),
    ],
)
def test_a_wrong_value_ends_the_streamer_before_any_command(
    spawn, peer, tmp_path, name, text, given
):
    from rclpy.qos import QoSProfile
    from std_msgs.msg import Float64MultiArray

    arm = peer.subscribe(
        Float64MultiArray, '/forward_position_controller/commands', QoSProfile(depth=10)
    )
    process = start_streamer_with(spawn, tmp_path, name, text)
    assert process.wait() == 1
    line = process.wait_for_log(f"'{name}': found {given}")
    assert line.startswith('cannot start: ')
    assert 'Traceback' not in process.log
    assert len(arm) == 0
    assert arm.publishers == 0
