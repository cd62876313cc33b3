"""The layouts in ``config`` have the form that their programs read."""

from __future__ import annotations

import json
import re
import subprocess
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
CONFIG = ROOT / 'config'
LAYOUTS = {
    'foxglove': CONFIG / 'foxglove' / 'sparkrt.json',
    'plotjuggler': CONFIG / 'plotjuggler' / 'sparkrt.xml',
    'rviz': CONFIG / 'rviz' / 'sparkrt.rviz',
}


def leaves(node):
    """Panels of a tree of splits."""
    if isinstance(node, str):
        return [node]
    assert node['direction'] in ('row', 'column')
    assert 0 < node['splitPercentage'] < 100
    return [*leaves(node['first']), *leaves(node['second'])]


def test_foxglove_shows_every_panel_it_configures_once():
    layout = json.loads(LAYOUTS['foxglove'].read_text())
    shown = leaves(layout['layout'])
    assert sorted(shown) == sorted(layout['configById'])
    kinds = {
        'Plot',
        'Image',
        'StateTransitions',
        'DiagnosticSummary',
        'RawMessages',
        'CallService',
    }
    assert {panel.partition('!')[0] for panel in shown} == kinds
    assert {'globalVariables', 'userNodes', 'playbackConfig'} <= layout.keys()


def test_plotjuggler_splits_match_their_areas():
    root = ElementTree.parse(LAYOUTS['plotjuggler']).getroot()
    assert root.tag == 'root'
    tabs = root.findall('./tabbed_widget/Tab')
    assert int(root.find('./tabbed_widget/currentTabIndex').get('index')) < len(tabs)
    for tab in tabs:
        (splitter,) = tab.findall('./Container/DockSplitter')
        areas = splitter.findall('DockArea')
        sizes = [float(size) for size in splitter.get('sizes').split(';')]
        assert splitter.get('orientation') in ('-', '|')
        assert int(splitter.get('count')) == len(areas) == len(sizes)
        assert sum(sizes) == pytest.approx(1.0, abs=1e-3)
        for area in areas:
            curves = area.findall('./plot/curve')
            colours = [curve.get('color') for curve in curves]
            assert curves
            assert len(set(colours)) == len(colours)
            assert all(re.fullmatch('#[0-9a-f]{6}', colour) for colour in colours)
    streamer = root.find('previouslyLoaded_Streamer').get('name')
    assert streamer in [plugin.get('ID') for plugin in root.findall('./Plugins/plugin')]


def test_rviz_reads_a_display_class_and_a_name_everywhere():
    manager = yaml.safe_load(LAYOUTS['rviz'].read_text())['Visualization Manager']
    for display in manager['Displays']:
        assert display['Class'].startswith('rviz_default_plugins/')
        assert display['Name']
        assert display['Enabled'] is display['Value']
    assert manager['Global Options']['Fixed Frame'] == 'base_link'


@pytest.mark.parametrize('program', LAYOUTS)
def test_the_documented_line_moves_a_layout_into_a_namespace(program):
    text = (ROOT / 'docs' / 'tuning.md').read_text()
    (script,) = re.findall(r"^sed '([^']+)' ", text, re.MULTILINE)
    command = ['sed', script, str(LAYOUTS[program])]
    moved = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    topics = re.findall(r'(?<=["\s])/[\w/]+', LAYOUTS[program].read_text())
    ours = [topic for topic in topics if re.match('/(sparkrt|action_streamer)/', topic)]
    assert ours
    for topic in ours:
        assert f'/left{topic}' in moved
    assert not re.search(r'["\s]/(sparkrt|action_streamer)/', moved)


@pytest.mark.parametrize('program', LAYOUTS)
def test_the_build_installs_them(program):
    installed = re.search(
        r'install\(DIRECTORY ([^)]*) DESTINATION', (ROOT / 'CMakeLists.txt').read_text()
    )
    assert LAYOUTS[program].relative_to(ROOT).parts[0] in installed[1].split()
