"""Cameras and joint states that end, freeze or go wrong: hold, stop, say why, go on."""

from __future__ import annotations

import math

import numpy as np
import pytest

from sparkrt_ros.convert.time import stamp_to_ns

pytestmark = pytest.mark.ros

MAX_AGE_NS = 300_000_000
MAX_FROZEN_NS = 500_000_000


def samples_ns(stack, stream: str) -> list[int]:
    """When the samples of ``stream`` were taken that the chunks are made of."""
    return [
        stamp_to_ns(stamp)
        for chunk in stack.policy.chunks.messages
        for name, stamp in zip(chunk.stream_names, chunk.stream_stamps, strict=True)
        if name == stream
    ]


def test_a_camera_that_is_cut(running):
    stack, feed = running, running.feed
    feed.stop('wrist')
    cut_ns = stack.peer.now_ns
    stack.wait_policy_reason('wrist_camera/image_raw: ', 's old; expected at most 0.3 s')
    stack.wait_reason('stopped', 'the actions ran out', 'the policy is waiting', 'wrist_camera')
    pause = stack.pause_after(cut_ns)
    stack.assert_ended_with_its_actions(pause)
    assert max(samples_ns(stack, 'wrist')) <= cut_ns
    stack.assert_resumes(lambda: feed.start('wrist'))


def test_a_camera_that_repeats_one_message(running):
    stack, feed = running, running.feed
    feed.stop('front')
    frozen_ns = stack.peer.now_ns
    timer = stack.peer.every(1 / 30, lambda: feed.send_image('front', stamp_ns=frozen_ns))
    stack.wait_policy_reason('front_camera/image_raw: ', 's old; expected at most 0.3 s')
    stack.wait_reason('stopped', 'the actions ran out', 'the policy is waiting', 'front_camera')
    stack.assert_ended_with_its_actions(stack.pause_after(frozen_ns))
    assert max(samples_ns(stack, 'front')) <= frozen_ns
    timer.cancel()
    stack.assert_resumes(lambda: feed.start('front'))


def test_a_camera_that_sends_one_picture_under_new_stamps(running):
    stack, feed = running, running.feed
    feed.pixels_change = False
    frozen_ns = stack.peer.now_ns
    stack.wait_policy_reason('front_camera/image_raw: found the same picture for 0.')
    stack.wait_reason('stopped', 'the actions ran out', 'front_camera', 'the same picture')
    stack.assert_ended_with_its_actions(stack.pause_after(frozen_ns))
    used_ns = [stamp_ns for stamp_ns in samples_ns(stack, 'front') if stamp_ns > frozen_ns]
    assert not used_ns or max(used_ns) - min(used_ns) <= MAX_FROZEN_NS
    stack.assert_resumes(lambda: setattr(feed, 'pixels_change', True))


def test_joint_states_that_are_cut(running):
    stack, feed = running, running.feed
    feed.stop('joints')
    last = feed.send_joints()
    fresh_until_ns = stamp_to_ns(last.header.stamp) + MAX_AGE_NS
    stack.wait_reason('stopped', 'joint_states', 'expected at most 0.300 s')
    stack.wait_policy_reason('joint_states')
    pause = stack.pause_after(stamp_to_ns(last.header.stamp))
    assert pause.last_moving_ns < fresh_until_ns <= pause.hold_ns
    stack.assert_resumes(lambda: feed.start('joints'))


def test_joints_that_are_not_a_number(running):
    stack, feed = running, running.feed
    feed.stop('joints')
    last = feed.send_joints()
    fresh_until_ns = stamp_to_ns(last.header.stamp) + MAX_AGE_NS
    feed.positions['elbow_flex'] = math.nan
    feed.start('joints')
    stack.wait_reason('stopped', 'joint_states', 'position not finite: elbow_flex nan')
    status = stack.wait_policy_reason('joint_states', 'position not finite: elbow_flex nan')
    assert status.bad_messages > 0
    pause = stack.pause_after(stamp_to_ns(last.header.stamp))
    assert pause.last_moving_ns < fresh_until_ns <= pause.hold_ns
    for chunk in stack.policy.chunks.messages:
        assert np.isfinite(chunk.data).all()
    stack.assert_resumes(lambda: feed.positions.update(elbow_flex=0.25))


def test_pictures_of_a_wrong_form(running):
    stack, feed = running, running.feed
    feed.stop('front')
    cut_ns = stack.peer.now_ns
    timer = stack.peer.every(1 / 30, lambda: feed.send_image('front', step=7))
    stack.wait_policy_reason('front_camera/image_raw', 'step')
    stack.wait_reason('stopped', 'the actions ran out', 'front_camera/image_raw', 'step')
    stack.assert_ended_with_its_actions(stack.pause_after(cut_ns))
    timer.cancel()
    stack.assert_resumes(lambda: feed.start('front'))
