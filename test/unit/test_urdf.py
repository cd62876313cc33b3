"""Limits from a URDF: the tighter hold, and every joint that is commanded has to be in there."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from sparkrt_ros.convert.contract import load_contract
from sparkrt_ros.convert.urdf import narrow_contract
from sparkrt_ros.runtime.errors import ContractError

CONTRACT = """
name: arm
policy_rate_hz: 10.0
control_rate_hz: 50.0
hold_s: 1.0
URDF
joints:
  - {name: pan, unit: rad, limits: [-2.0, 2.0], max_velocity: 3.0, max_step: 0.1}
  - {name: lift, unit: deg, limits: [-1.0, 1.0], max_velocity: 3.0, urdf_joint: lift_joint}
  - {name: roll, unit: rad, limits: [-9.0, 9.0], max_velocity: 3.0}
  - {name: rail, unit: m, limits: [0.0, 0.5], max_velocity: 1.0}
  - {name: grip, unit: rad, limits: [0.0, 1.0], max_velocity: 3.0, urdf_joint: null}
  - {name: wheel, unit: rad/s, limits: [-9.0, 9.0], max_acceleration: 5.0}
  - {name: forward, unit: m/s, limits: [-0.5, 0.5]}
  - {name: passive, unit: rad, limits: [-1.0, 1.0], max_velocity: 3.0}
state:
  streams: [{name: joints, topic: joint_states, max_age_s: 0.1}]
  vector: [passive]
action:
  vector: [pan, lift, roll, rail, grip, wheel, forward]
  outputs:
    - name: arm
      type: float64_multi_array
      topic: arm/commands
      joints: [pan, lift, roll, rail, grip]
    - {name: wheels, type: float64_multi_array, topic: wheels/commands, joints: [wheel]}
    - {name: base, type: twist, topic: cmd_vel, joints: {forward: linear.x}}
"""
URDF = """<?xml version="1.0"?>
<robot name="arm">
  <link name="base"/>
  <joint name="pan" type="revolute">
    <parent link="base"/><child link="a"/>
    <limit lower="-1.5" upper="2.5" effort="10" velocity="2.0"/>
  </joint>
  <joint name="lift_joint" type="revolute">
    <limit lower="-3" upper="0.5" effort="1" velocity="9"/>
  </joint>
  <joint name="roll" type="continuous"><limit effort="1" velocity="1.25"/></joint>
  <joint name="rail" type="prismatic"><limit upper="0.4" effort="1" velocity="0.2"/></joint>
  <joint name="wheel" type="continuous"><limit effort="1" velocity="6"/></joint>
  <joint name="finger" type="prismatic">
    <limit upper="0.04" effort="1" velocity="1"/><mimic joint="rail" multiplier="-1"/>
  </joint>
  <joint name="mount" type="fixed"/>
  <joint name="broken" type="revolute"><limit velocity="${v}"/></joint>
  <transmission name="t"><joint name="pan"/></transmission>
  <ros2_control name="c" type="system"><joint name="pan"/></ros2_control>
</robot>
"""


def contract(folder: Path, *, urdf: str = '', text: str = CONTRACT):
    path = folder / 'arm.yaml'
    path.write_text(text.replace('URDF', urdf))
    return load_contract(path)


def narrowed(folder: Path, urdf: str = URDF, *, text: str = CONTRACT):
    return narrow_contract(contract(folder, text=text), urdf)


def test_the_tighter_of_both_limits_holds_joint_by_joint(tmp_path):
    limits = narrowed(tmp_path).action_limits
    np.testing.assert_array_equal(limits.low, [-1.5, -1.0, -9.0, 0.0, 0.0, -6.0, -0.5])
    np.testing.assert_array_equal(limits.high, [2.0, 0.5, 9.0, 0.4, 1.0, 6.0, 0.5])
    inf = math.inf
    np.testing.assert_array_equal(limits.max_rate, [2.0, 3.0, 1.25, 0.2, 3.0, 5.0, inf])
    np.testing.assert_array_equal(limits.max_step, [0.1, *[inf] * 6])


def test_a_file_named_in_the_contract_counts_the_same_and_is_part_of_its_meaning(tmp_path):
    (tmp_path / 'urdf').mkdir()
    (tmp_path / 'urdf' / 'arm.urdf').write_text(URDF)
    plain = contract(tmp_path)
    by_file = contract(tmp_path, urdf='urdf: urdf/arm.urdf')
    assert by_file.joints == narrowed(tmp_path).joints
    assert by_file.digest != plain.digest


def test_limits_of_the_urdf_never_change_what_the_policy_sees(tmp_path):
    values = np.array([0.3, 20.0, 1.0, 0.2, 0.5, 1.0, 0.1])
    plain, narrow = contract(tmp_path), narrowed(tmp_path)
    np.testing.assert_array_equal(plain.action_to_si(values), narrow.action_to_si(values))


def test_a_missing_joint_is_named_with_those_there_are(tmp_path):
    with pytest.raises(ContractError) as raised:
        narrowed(tmp_path, URDF.replace('name="pan" type', 'name="pan_joint" type'))
    text = str(raised.value)
    assert "no joint 'pan'" in text
    assert 'broken, finger, lift_joint, pan_joint, rail, roll, wheel' in text
    assert '`urdf_joint: null`' in text


def test_a_wheel_without_a_joint_keeps_the_limits_of_the_contract(tmp_path):
    urdf = URDF.replace('name="wheel"', 'name="other"')
    assert narrowed(tmp_path, urdf).action_limits.high[5] == 9.0
    named = CONTRACT.replace('max_acceleration: 5.0}', 'urdf_joint: wheel}')
    with pytest.raises(ContractError, match="no joint 'wheel'"):
        narrowed(tmp_path, urdf, text=named)


@pytest.mark.parametrize(
    ('joint', 'reason'),
    [
        ('finger', "joint 'finger', which mimics 'rail'.*command 'rail' instead"),
        ('mount', "joint 'mount' of type fixed"),
        ('broken', r"joint 'broken'.*velocity='\$\{v\}'.*run xacro first"),
    ],
)
def test_a_joint_that_cannot_be_commanded_is_refused(tmp_path, joint, reason):
    text = CONTRACT.replace('urdf_joint: lift_joint', f'urdf_joint: {joint}')
    with pytest.raises(ContractError, match=reason):
        narrowed(tmp_path, text=text)


@pytest.mark.parametrize(
    ('old', 'new', 'reason'),
    [
        ('velocity="2.0"', '', "joint 'pan'.*velocity=None.*a finite number"),
        ('velocity="2.0"', 'velocity="0"', "joint 'pan'.*velocity 0"),
        ('velocity="2.0"', 'velocity="nan"', "velocity='nan'"),
        ('lower="-1.5"', 'lower="a"', "lower='a'"),
        ('lower="-1.5"', 'lower="2.2"', r"joint 'pan' from 2.2 to 2.5.*-2 to 2"),
        ('limit lower="-1.5"', 'other lower="-1.5"', "no <limit> of joint 'pan'"),
        ('name="mount"', 'name="pan"', "joint 'pan' twice"),
        ('<link name="base"/>', '<link name="base">', 'no XML'),
        ('robot', 'model', '<model>'),
        ('<?xml version="1.0"?>', '<!DOCTYPE robot SYSTEM "file:///etc/passwd">', '<!DOCTYPE'),
    ],
)
def test_what_is_no_sound_urdf_is_refused(tmp_path, old, new, reason):
    assert old in URDF
    with pytest.raises(ContractError, match=reason):
        narrowed(tmp_path, URDF.replace(old, new))


def test_entities_that_expand_without_bound_are_refused_before_parsing(tmp_path):
    bomb = '<!DOCTYPE r [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;&a;&a;">]><robot>&b;</robot>'
    with pytest.raises(ContractError, match='DOCTYPE'):
        narrowed(tmp_path, bomb)


def test_a_text_without_end_is_refused(tmp_path):
    with pytest.raises(ContractError, match='at most'):
        narrowed(tmp_path, '<robot>' + ' ' * (17 * 1024 * 1024) + '</robot>')


@pytest.mark.parametrize('value', ['urdf: missing.urdf', 'urdf: binary.urdf', 'urdf: 3'])
def test_a_file_that_cannot_be_read_is_named(tmp_path, value):
    (tmp_path / 'binary.urdf').write_bytes(b'\xff\xfe<robot/>')
    with pytest.raises(ContractError, match='urdf'):
        contract(tmp_path, urdf=value)


def test_joints_that_are_only_observed_need_not_be_there(tmp_path):
    joints = {joint.name: joint for joint in narrowed(tmp_path).joints}
    assert joints['passive'] == {j.name: j for j in contract(tmp_path).joints}['passive']
