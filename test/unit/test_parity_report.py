"""The page of a parity run: whole, readable without a network, and true to its result."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import cv2
import numpy as np
import pytest
from parity_report_samples import (
    BAD,
    GOOD,
    LEROBOT,
    REFERENCE,
    START_NS,
    actions_of,
    arm,
    comparison,
    sample,
    with_commands,
)

from sparkrt_ros.replay.report import write_png, write_report
from sparkrt_ros.replay.result import Event, ParityResult, StreamHistory

VOID = {'meta', 'img', 'br', 'link', 'hr', 'input'}
ROOT = Path(__file__).resolve().parents[2]


class Page(HTMLParser):
    """Checks the nesting while it reads, and keeps what the tests ask for."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == [], f'not closed: {self.open}'

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open[-1:] == [tag], f'</{tag}> closes nothing'
        self.open.pop()

    def handle_data(self, data: str) -> None:
        if not self.open or self.open[-1] != 'style':
            self.texts.append(' '.join(data.split()))

    @property
    def text(self) -> str:
        return ' '.join(filter(None, self.texts))

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]

    def labels(self) -> list[str]:
        return [str(svg['aria-label']) for svg in self.all('svg')]


def page_of(result: ParityResult, folder: Path) -> Page:
    path = folder / 'report.html'
    write_report(result, path)
    return Page(path.read_text(encoding='utf-8'))


@pytest.fixture(scope='module')
def page(tmp_path_factory: pytest.TempPathFactory) -> Page:
    """Of a run with everything in it; for tests that only look."""
    return page_of(with_commands(sample()), tmp_path_factory.mktemp('page'))


def test_names_every_candidate_reason_joint_stream_and_warning(page: Page) -> None:
    result = with_commands(sample())
    for judged in result.comparisons:
        title = f'{judged.candidate} against {judged.reference}'
        assert page.text.count(title) >= 3, title
        for reason in judged.reasons:
            assert reason in page.text
    wanted = [*result.joint_names, *result.warnings, 'pick.mcap', 'tiny', 'ab' * 32, '2.13.0']
    wanted += [stream.topic for stream in result.streams] + [e.text for e in result.events]
    assert [text for text in wanted if text not in page.text] == []


def test_shows_every_figure(page: Page) -> None:
    labels = ' | '.join(page.labels())
    assert f'against {REFERENCE}' in labels
    assert f'against {LEROBOT}' in labels
    for part in ('commands of each joint', 'largest difference', 'worst chunk', 'histogram'):
        assert part in labels
    assert 'messages and events of every stream' in labels


def test_puts_the_worst_verdict_first_and_into_the_title(page: Page) -> None:
    classes = [str(section['class']) for section in page.all('section')]
    assert [name.split()[1] for name in classes] == ['fail', 'warn', 'pass', 'pass', 'none']
    assert page.texts[page.texts.index('fail: parity of pick.mcap')]


def test_needs_nothing_but_itself(page: Page) -> None:
    assert page.all('script') == page.all('link') == page.all('iframe') == []
    policy = next(
        str(m['content']) for m in page.all('meta') if 'content' in m and 'http-equiv' in m
    )
    assert "default-src 'none'" in policy
    for _, attributes in page.tags:
        for name in ('src', 'href', 'xlink:href'):
            value = attributes.get(name)
            assert value is None or value.startswith(('#', 'data:image/')), value
        assert not [name for name in attributes if name.startswith('on')]


def test_ids_are_unique_and_links_lead_somewhere(page: Page) -> None:
    ids = [
        str(a['id']) for tag, a in page.tags if 'id' in a and tag in ('h2', 'section', 'clippath')
    ]
    assert len(ids) == len(set(ids))
    links = [str(a['href'])[1:] for a in page.all('a')]
    assert set(links) <= set(ids)
    assert 'commands' in links


def test_the_same_result_gives_the_same_bytes(tmp_path: Path) -> None:
    paths = [tmp_path / 'a.html', tmp_path / 'b.html']
    for path in paths:
        write_report(sample(chunks=3, joints=2), path)
    assert paths[0].read_bytes() == paths[1].read_bytes()


@pytest.mark.parametrize(
    'nasty', ['<script>alert(1)</script>', '"&\'', '$x^2$', '_hidden', '%s{}']
)
def test_text_from_outside_stays_text(nasty: str, tmp_path: Path) -> None:
    result = sample(chunks=3, joints=1)
    truth = result.arms[0].actions
    reference, candidate = arm(f'ref {nasty}', truth), arm(nasty, truth + 0.01)
    empty = np.array([], dtype=np.int64)
    result = replace(
        result,
        bag=f'/data/{nasty}',
        robot=nasty,
        joint_names=(nasty,),
        units=(nasty,),
        arms=(reference, candidate),
        comparisons=(comparison(candidate, reference, reasons=(f'why {nasty}',)),),
        streams=(
            StreamHistory(name=nasty, topic=nasty, stamps_ns=empty, received_ns=empty, dropped=0),
        ),
        events=(Event(time_ns=START_NS, kind=nasty, stream=nasty, text=f'event {nasty}'),),
        worst_frames={nasty: {nasty: np.zeros((4, 4, 3), dtype=np.uint8)}},
        provenance={nasty: {nasty: nasty}},
        warnings=(f'warning {nasty}',),
    )
    page = page_of(result, tmp_path)
    assert page.all('script') == []
    for text in (f'why {nasty}', f'event {nasty}', f'warning {nasty}', f'ref {nasty}'):
        assert text in page.text
    assert [image['alt'] for image in page.all('img')] == [nasty]
    write_png(result, tmp_path / 'figure.png')


def test_pictures_are_those_of_the_worst_chunk(page: Page) -> None:
    # Of the two that differ; an identical candidate has no worst chunk to show.
    assert len(page.all('img')) == 2
    assert f'{GOOD} against {REFERENCE} : no chunk differs.' in page.text


def test_pictures_of_another_comparison_are_not_shown(tmp_path: Path) -> None:
    result = sample()
    first, *_ = (c for c in result.comparisons if c.candidate == BAD)
    second = replace(first, reference=LEROBOT, worst_chunk=(first.worst_chunk + 1) % 12)
    page = page_of(replace(result, comparisons=(first, second)), tmp_path)
    assert len(page.all('img')) == 1


def test_values_that_are_not_finite_are_shown_as_such(tmp_path: Path) -> None:
    result = sample()
    truth = result.arms[0].actions
    broken = truth.copy()
    broken[2:5, :, 1] = np.nan
    broken[7, 3, 0] = np.inf
    candidate = arm(BAD, broken)
    judged = comparison(candidate, result.arms[0], band='fail', reasons=('not finite',))
    page = page_of(
        replace(result, arms=(result.arms[0], candidate), comparisons=(judged,)), tmp_path
    )
    rows = page.text[page.text.index('Agreement, joint by joint') :]
    assert 'NaN ∞' in rows
    write_png(
        replace(result, arms=(result.arms[0], candidate), comparisons=(judged,)), tmp_path / 'f'
    )


def test_a_candidate_of_nothing_but_nan_is_shown(tmp_path: Path) -> None:
    result = sample()
    candidate = arm(BAD, np.full_like(result.arms[0].actions, np.nan), seconds=np.nan)
    judged = comparison(candidate, result.arms[0], band='fail', reasons=('all NaN',))
    broken = replace(result, arms=(result.arms[0], candidate), comparisons=(judged,))
    page = page_of(broken, tmp_path)
    assert 'all NaN' in page.text
    write_png(broken, tmp_path / 'figure.png')


def test_an_arm_without_model_space_is_judged_in_robot_units(tmp_path: Path) -> None:
    result = sample()
    recorded = arm('recorded', result.arms[0].actions + 0.01, normalized=None, seconds=None)
    judged = comparison(recorded, result.arms[0])
    page = page_of(replace(result, arms=(*result.arms, recorded), comparisons=(judged,)), tmp_path)
    assert 'robot units, judged' in page.text
    assert 'model space, judged' not in page.text


def test_nothing_at_all_is_a_page_too(tmp_path: Path) -> None:
    nothing = sample(
        records=(),
        arms=(),
        comparisons=(),
        streams=(),
        events=(),
        worst_frames={},
        provenance={},
        warnings=(),
    )
    page = page_of(nothing, tmp_path)
    assert 'Nothing was compared' in page.text
    assert 'pass' not in page.text
    write_png(nothing, tmp_path / 'figure.png')


def test_streams_that_brought_nothing_are_listed(tmp_path: Path) -> None:
    empty = np.array([], dtype=np.int64)
    silent = StreamHistory(
        name='front', topic='/silent', stamps_ns=empty, received_ns=empty, dropped=0
    )
    page = page_of(sample(chunks=3, joints=1, streams=(silent,)), tmp_path)
    assert '/silent 0' in page.text


@pytest.mark.parametrize('chunks', [1, 2])
def test_a_single_chunk_is_a_page_too(chunks: int, tmp_path: Path) -> None:
    result = sample(chunks=chunks, rows=1, joints=2)
    page = page_of(result, tmp_path)
    assert f'{chunks} chunk' in page.text
    write_png(result, tmp_path / 'figure.png')


def test_chunks_of_a_bag_whose_time_goes_back_are_numbered(tmp_path: Path) -> None:
    result = sample()
    back = [replace(r, taken_ns=r.taken_ns - 10**9) for r in result.records[6:]]
    path = tmp_path / 'report.html'
    write_report(replace(result, records=(*result.records[:6], *back)), path)
    figure = path.read_text(encoding='utf-8').split('<svg')[1].split('</svg>')[0]
    assert '>chunk</text>' in figure
    assert 'time in the bag' not in figure


def test_a_long_bag_stays_a_page_of_a_few_megabytes(tmp_path: Path) -> None:
    chunks, joints = 5000, 7
    random = np.random.default_rng(0)
    truth = actions_of(chunks, 8, joints) + random.normal(0, 0.2, (chunks, 8, joints))
    reference = arm(REFERENCE, truth)
    candidate = arm(BAD, truth + random.normal(0, 0.01, truth.shape))
    noted = tuple(
        Event(
            time_ns=START_NS + i * 10**8, kind=('stale', 'skew')[i % 2], stream='front', text='x'
        )
        for i in range(5000)
    )
    result = sample(
        chunks=2,
        joints=joints,
        events=noted,
    )
    long = sample(chunks=2, joints=joints).records[0]
    records = tuple(
        replace(long, index=i, taken_ns=START_NS + i * 150_000_000) for i in range(chunks)
    )
    arms = (reference, candidate)
    judged = comparison(candidate, reference, band='warn')
    path = tmp_path / 'report.html'
    write_report(replace(result, records=records, arms=arms, comparisons=(judged,)), path)
    assert path.stat().st_size < 3_000_000
    page = Page(path.read_text(encoding='utf-8'))
    assert '5000 chunks' in page.text
    assert 'a column is the worst of 8' in page.text


def test_large_frames_are_embedded_as_jpeg(tmp_path: Path) -> None:
    image = cv2.resize(
        np.random.default_rng(0).integers(0, 256, (12, 16, 3), dtype=np.uint8), (640, 480)
    )
    result = sample(chunks=3, joints=1, worst_frames={BAD: {'front': image}})
    page = page_of(result, tmp_path)
    source = str(page.all('img')[0]['src'])
    assert source.startswith('data:image/jpeg;base64,')
    assert len(source) < 200_000


def test_the_figure_for_papers_is_a_sharp_picture(tmp_path: Path) -> None:
    path = tmp_path / 'figure.png'
    write_png(with_commands(sample(joints=14)), path)
    image = cv2.imread(str(path))
    assert image is not None
    assert image.shape[1] >= 1500
    assert image.std() > 10
    again = tmp_path / 'again.png'
    write_png(with_commands(sample(joints=14)), again)
    assert again.read_bytes() == path.read_bytes()


def test_importing_the_report_imports_no_matplotlib() -> None:
    code = 'import sys, sparkrt_ros.replay.report; sys.exit("matplotlib" in sys.modules)'
    done = subprocess.run([sys.executable, '-c', code], cwd=ROOT, check=False)
    assert done.returncode == 0
