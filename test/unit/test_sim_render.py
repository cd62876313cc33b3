"""The software cameras: what they show, in which order, and that they always show the same."""

import itertools

import cv2
import numpy as np
import pytest

from sparkrt_ros.sim.arm import ArmDynamics
from sparkrt_ros.sim.expert import Expert
from sparkrt_ros.sim.render import FRONT_CAMERA, Renderer
from sparkrt_ros.sim.scene import CUBE, TRAY_WALL, Box, front_view, look_at
from sparkrt_ros.sim.task import PickPlace

EYE = np.array([0.6, 0.0, 0.3])


def box(center, *, half=0.03, color=(200, 0, 0)):
    return Box(
        center_m=np.array(center), rotation=np.eye(3), half_m=(half, half, half), color=color
    )


def hue_share(image, color):
    """Share of the pixels that have the hue of ``color`` and are colourful."""
    hsv = cv2.cvtColor(image, cv2.COLOR_RGB2HSV).astype(int)
    hue = int(cv2.cvtColor(np.uint8([[color]]), cv2.COLOR_RGB2HSV)[0, 0, 0])
    near = np.abs((hsv[..., 0] - hue + 90) % 180 - 90) < 6
    return float((near & (hsv[..., 1] > 110)).mean())


@pytest.mark.parametrize('camera', ['front', 'wrist'])
def test_frames_are_rgb_of_the_declared_size(camera):
    frame = PickPlace(seed=1).render()[camera]
    assert frame.shape == (240, 320, 3)
    assert frame.dtype == np.uint8


@pytest.mark.parametrize('seed', range(20))
def test_cube_and_tray_are_in_sight_of_the_front_camera(seed):
    frame = PickPlace(seed=seed).render()['front']
    assert hue_share(frame, CUBE) > 0.001
    assert hue_share(frame, TRAY_WALL) > 0.002


def test_the_same_seed_shows_the_same_frames_and_another_seed_others():
    def frames(seed):
        task, expert = PickPlace(seed=seed), Expert()
        shown = []
        for _ in range(12):
            shown += task.render().values()
            task.step(expert.command(task))
        return np.stack(shown)

    first = frames(4)
    np.testing.assert_array_equal(first, frames(4))
    assert (first != frames(5)).any()


@pytest.mark.parametrize('order', list(itertools.permutations(range(3))))
def test_the_nearer_box_covers_the_farther_in_any_order_of_the_list(order):
    colors = [(255, 0, 0), (0, 255, 0), (0, 0, 255)]
    boxes = [box((0.1 * i, 0.0, 0.05), color=colors[i]) for i in range(3)]
    renderer = Renderer(FRONT_CAMERA, fixed_view=look_at(EYE, np.array([0.1, 0.0, 0.05])))
    image = renderer.render([boxes[i] for i in order])
    face = boxes[2].center_m + np.array([0.03, 0.0, 0.0])
    points = (face - EYE) @ look_at(EYE, np.array([0.1, 0, 0.05])).rotation
    x, y = points[:2] / points[2] * FRONT_CAMERA.focal_px + [159.5, 119.5]
    assert image[round(y), round(x)].argmax() == 2


def test_a_large_slab_under_a_small_box_does_not_cover_it():
    slab = Box(
        center_m=np.array([0.2, 0.0, 0.01]),
        rotation=np.eye(3),
        half_m=(0.2, 0.2, 0.01),
        color=(0, 0, 250),
    )
    small = box((0.05, 0.0, 0.04), half=0.02, color=(250, 0, 0))
    view = look_at(EYE, small.center_m)
    image = Renderer(FRONT_CAMERA, fixed_view=view).render([small, slab])
    assert image[119, 159].argmax() == 0


def test_boxes_behind_and_around_the_camera_do_no_harm():
    view = look_at(EYE, np.array([0.1, 0.0, 0.05]))
    boxes = [box(EYE + np.array([0.2, 0.0, 0.0])), box(EYE, half=0.05), box((0.1, 0, 0.05))]
    image = Renderer(FRONT_CAMERA, fixed_view=view).render(boxes)
    assert image.shape == (240, 320, 3)


def test_a_cube_in_the_air_has_its_shadow_below_it():
    view = front_view()
    lifted = Renderer(FRONT_CAMERA, fixed_view=view).render([box((0.2, 0.1, 0.15), half=0.02)])
    empty = Renderer(FRONT_CAMERA, fixed_view=view).render([box((0.2, -0.2, 0.15), half=0.02)])
    point = (np.array([0.2, 0.1, 0.0]) - view.position_m) @ view.rotation
    x, y = point[:2] / point[2] * FRONT_CAMERA.focal_px + [159.5, 119.5]
    assert int(lifted[round(y), round(x)].sum()) < 0.8 * int(empty[round(y), round(x)].sum())


def test_a_renderer_without_a_view_says_so():
    with pytest.raises(ValueError, match='fixed view'):
        Renderer(FRONT_CAMERA).render([box((0, 0, 0))])


def test_every_pose_of_the_arm_can_be_drawn():
    random = np.random.default_rng(0)
    task = PickPlace(seed=0)
    lower, upper = np.array(task.spec.arm.lower_rad), np.array(task.spec.arm.upper_rad)
    for _ in range(40):
        task.arm = ArmDynamics(task.spec.arm, random.uniform(lower, upper))
        assert all(frame.std() > 1.0 for frame in task.render().values())
