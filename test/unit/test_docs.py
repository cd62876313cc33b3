"""What the README and ``docs`` refer to is there: links, files, options of commands."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob('*.md'), *ROOT.glob('docs/*.md')])
FENCE = re.compile(r'^ *```\w*\n(.*?)^ *```', re.DOTALL | re.MULTILINE)
LINK = re.compile(r'(?<!`)\]\(([^)\s]+)\)')
HEADING = re.compile(r'^#+ (.+)$', re.MULTILINE)
# Files of this repository, as they are written in backticks.
FOLDERS = 'bench|config|docs|launch|msg|sparkrt_ros|test|tools|bags|checkpoints'
PATH = re.compile(rf'`((?:{FOLDERS})/[\w./*-]+)(?:::\w+)*`')
PROGRAM = re.compile(r'(?:bench|tools)/\w+\.py')


def text_of(page: Path) -> str:
    return page.read_text(encoding='utf-8')


def anchors(page: Path) -> set[str]:
    """As GitHub makes them of headings."""
    plain = FENCE.sub('', text_of(page))
    titles = [re.sub(r'[^\w\- ]', '', title.lower()) for title in HEADING.findall(plain)]
    return {title.strip().replace(' ', '-') for title in titles}


def commands(page: Path) -> list[str]:
    """Lines of code blocks, and what stands in backticks."""
    text = text_of(page)
    lines = [line.strip() for block in FENCE.findall(text) for line in block.splitlines()]
    spans = re.findall(r'`([^`\n]+)`', FENCE.sub('', text))
    return [re.sub(r'\s#\s.*', '', line) for line in [*lines, *spans]]


def sources(command: str) -> list[Path]:
    """The files that define the options of a command of this repository."""
    if found := re.match(r'(?:\S*python )?(' + PROGRAM.pattern + r')\b', command):
        return [ROOT / found[1]]
    if found := re.match(r'\S*python -m (sparkrt_ros[\w.]+)', command):
        return [ROOT / f'{found[1].replace(".", "/")}.py']
    if found := re.match(r'(?:ros2 run sparkrt )?sparkrt (\w+)', command):
        return sorted((ROOT / 'sparkrt_ros' / 'cli').glob('*.py'))
    return []


def options(command: str) -> list[str]:
    words = shlex.split(command.replace("'", '').replace('…', ''))
    return [word.partition('=')[0] for word in words if word.startswith('--')]


@pytest.mark.parametrize('page', PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for link in LINK.findall(FENCE.sub('', text_of(page))):
        if re.match(r'\w+:', link):
            continue
        name, _, anchor = link.partition('#')
        target = (page.parent / name) if name else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


@pytest.mark.parametrize('page', PAGES, ids=lambda page: page.name)
def test_files_that_are_named_exist(page):
    for path in PATH.findall(text_of(page)):
        assert any(ROOT.glob(path.rstrip('/'))) or any(ROOT.glob(f'{path}.py')), path


@pytest.mark.parametrize('page', PAGES, ids=lambda page: page.name)
def test_commands_have_the_options_they_are_shown_with(page):
    for command in commands(page):
        defined = ''.join(text_of(source) for source in sources(command))
        for option in options(command) if defined else ():
            assert f"'{option}'" in defined, command


def test_commands_are_looked_at():
    shown = [c for page in PAGES for c in commands(page) if sources(c) and options(c)]
    assert len(shown) > 25
    assert options('sparkrt parity BAG … --live backend=x --json=out.json') == ['--live', '--json']


def test_targets_of_make_exist():
    makefile = (ROOT / 'Makefile').read_text()
    for page in PAGES:
        for target in re.findall(r'(?:`|^)make (\w[\w-]*)', text_of(page), re.MULTILINE):
            assert re.search(rf'^{target}:', makefile, re.MULTILINE), f'{page.name}: {target}'
