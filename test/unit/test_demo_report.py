"""The demo's page, and the parts that it shares with the parity report."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sparkrt_ros.demo.record import DemoRecord, Episode, Frame
from sparkrt_ros.demo.report import write_report
from sparkrt_ros.report_page import cards, picture, svg, table
from sparkrt_ros.report_style import FIGURE_COLOURS, SERIES, STYLE, css

START_NS = 1_700_000_000_000_000_000


def record(*, successes: int = 2) -> DemoRecord:
    times = [START_NS + k * 10_000_000 for k in range(300)]
    frames = [
        Frame(camera=camera, stamp_ns=t, image=np.full((24, 32, 3), k % 256, dtype=np.uint8))
        for camera in ('front', 'wrist<1>')
        for k, t in enumerate(times[::20])
    ]
    values = [np.array([np.sin(k / 30), np.nan if k < 5 else 0.5]) for k in range(300)]
    return DemoRecord(
        joint_names=('pan', 'grip & lift'),
        episodes=[
            Episode(
                seed=seed,
                success=seed < successes,
                duration_s=2.5,
                start_ns=times[0],
                end_ns=times[-1],
            )
            for seed in range(2)
        ],
        frames=frames,
        command_ns=times,
        commands=values,
        position_ns=times,
        positions=values,
        chunks=[(t, t - 30_000_000, 0.02) for t in times[::25]],
        latencies_s=[0.05, 0.06],
        counters={'streamer drops': 0},
        machine={'CPU': 'one with <8> cores'},
        control_rate_hz=100.0,
    )


def page(made: DemoRecord, folder: Path) -> str:
    path = folder / 'demo.html'
    write_report(made, path)
    return path.read_text(encoding='utf-8')


def test_the_demo_tells_successes_joints_machine_and_shows_frames(tmp_path: Path) -> None:
    text = page(record(), tmp_path)
    for wanted in ('2 of 2', 'grip &amp; lift', 'wrist&lt;1&gt;', 'one with &lt;8&gt; cores'):
        assert wanted in text
    assert text.count('data:image/jpeg') == 14
    assert text.count('<svg role="img"') == 2
    assert '<script' not in text


def test_failed_attempts_are_told(tmp_path: Path) -> None:
    text = page(record(successes=1), tmp_path)
    assert '1 of 2' in text
    assert '<td>failed</td>' in text


def test_a_demo_without_anything_is_a_page_too(tmp_path: Path) -> None:
    assert '0 of 0' in page(DemoRecord(), tmp_path)


@pytest.mark.parametrize('text', ['<b>', '"&', "'x"])
def test_parts_escape_what_they_are_given(text: str) -> None:
    made = cards([(text, text, 'good')]) + table([(text, text)], heads=(text,))
    made += picture(np.zeros((2, 2, 3), dtype=np.uint8), caption=text)
    assert '<b>' not in made.replace('<b>&', '')
    assert f'>{text}<' not in made


def test_figures_follow_the_style_sheet() -> None:
    from matplotlib.figure import Figure

    figure = Figure()
    figure.subplots().plot([0, 1], color=SERIES[1])
    drawn = svg(figure, name='one', label='a "line"')
    assert drawn.startswith('<svg role="img" aria-label="a &quot;line&quot;"')
    assert 'stroke: var(--series1)' in drawn
    assert 'stroke: #000000' not in drawn
    other = svg(figure, name='two', label='')
    ids = [{part.split('"')[0] for part in d.split(' id="')[1:]} for d in (drawn, other)]
    clips = [{name for name in found if name.startswith('p')} for found in ids]
    assert clips[0] & clips[1] <= {name for name in clips[0] if name.startswith('patch')}


def test_every_colour_of_a_figure_is_a_variable_of_the_style_sheet() -> None:
    for colour, variable in FIGURE_COLOURS.items():
        assert f'{variable}: #' in STYLE
        assert css(colour) == f'var({variable})'
    assert css('#123456') == '#123456'
