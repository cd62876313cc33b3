"""The layouts in ``config`` against the running nodes: every topic and every field they name."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ElementTree

import pytest
import yaml
from ros_harness import ROOT, executable, parameter_file

from sparkrt.msg import StreamerStatus
from sparkrt_ros.nodes import qos
from sparkrt_ros.nodes.streamer_outlet import message_class

pytestmark = pytest.mark.ros

FOXGLOVE = ROOT / 'config' / 'foxglove' / 'sparkrt.json'
PLOTJUGGLER = ROOT / 'config' / 'plotjuggler' / 'sparkrt.xml'
RVIZ = ROOT / 'config' / 'rviz' / 'sparkrt.rviz'
# Of a robot_state_publisher, which is none of this package.
ELSEWHERE = {'/robot_description'}
NUMBERS = re.compile(r'double|float|u?int(8|16|32|64)')
INDEX = re.compile(r'(.*)\[\d+\]')


@pytest.fixture(scope='module')
def graph(ros_domain, session_peer, tmp_path_factory, act_weights_cache):
    """Topics and services of both nodes with the robot that is shipped: name -> type."""
    from ros_fixtures import Spawner

    from sparkrt.msg import PolicyStatus

    scratch = tmp_path_factory.mktemp('layouts')
    spawner = Spawner(ros_domain)
    nodes = {
        'policy_node': (
            'sparkrt',
            {'checkpoint': str(ROOT / 'checkpoints' / 'embedded_pick_place'), 'threads': 1},
        ),
        'action_streamer': ('action_streamer', {}),
    }
    inboxes = [
        session_peer.subscribe(PolicyStatus, '/sparkrt/status', qos.STATUS),
        session_peer.subscribe(StreamerStatus, '/action_streamer/status', qos.STATUS),
    ]
    for program, (name, values) in nodes.items():
        path = parameter_file(scratch, name, {'robot': 'embedded', 'autostart': True, **values})
        spawner([executable(program), '--ros-args', '--params-file', str(path)])
    for inbox in inboxes:
        inbox.wait_for(lambda m: m.state == 'waiting', timeout_s=60.0, what='state waiting')
    topics = session_peer.node.get_topic_names_and_types()
    services = session_peer.node.get_service_names_and_types()
    yield {name: types[0] for name, types in (*topics, *services)}
    spawner.stop()
    session_peer.release()


def field_type(message_type, fields):
    """The ROS type of a field path in a message type, as ``float64`` or ``sequence<uint64>``."""
    name, *rest = fields
    index = INDEX.fullmatch(name)
    found = message_class(message_type).get_fields_and_field_types()[index[1] if index else name]
    if index:
        match = re.fullmatch(r'sequence<([^,>]+)(, \d+)?>|([^\[]+)\[\d+\]', found)
        assert match, f'{name} of {message_type} is no array'
        found = match[1] or match[3]
    return field_type(found.replace('/', '/msg/'), rest) if rest else found


def foxglove():
    return json.loads(FOXGLOVE.read_text())


def panels(kind):
    return [v for k, v in foxglove()['configById'].items() if k.partition('!')[0] == kind]


def split_path(path, *, separator):
    """('/sparkrt/status', ['stream_ages[0]']): the longest topic first."""
    topic = re.match(r'/(sparkrt|action_streamer)/\w+', path)[0]
    return topic, path[len(topic) + 1 :].split(separator)


def numeric(kind):
    return NUMBERS.fullmatch(kind) is not None


def plotted():
    for panel in panels('Plot'):
        yield from (split_path(p['value'], separator='.') for p in panel['paths'])
    for curve in ElementTree.parse(PLOTJUGGLER).iter('curve'):
        yield split_path(curve.get('name'), separator='/')


def test_every_curve_is_a_number_that_is_published(graph):
    curves = list(plotted())
    assert len(curves) > 40
    for topic, fields in curves:
        assert numeric(field_type(graph[topic], fields)), f'{topic} {fields}'


def test_every_state_is_a_text_that_is_published(graph):
    paths = [p['value'] for panel in panels('StateTransitions') for p in panel['paths']]
    assert paths
    for path in paths:
        topic, fields = split_path(path, separator='.')
        assert field_type(graph[topic], fields) == 'string'


def test_pictures_diagnostics_and_messages_have_their_topics(graph):
    pictures = [panel['imageMode']['imageTopic'] for panel in panels('Image')]
    assert [graph[topic] for topic in pictures] == ['sensor_msgs/msg/Image'] * 2
    (health,) = panels('DiagnosticSummary')
    assert graph[health['topicToRender']] == 'diagnostic_msgs/msg/DiagnosticArray'
    for panel in panels('RawMessages'):
        assert graph[panel['topicPath']].startswith('sparkrt/msg/')


def test_the_buttons_call_services_that_are_there(graph):
    buttons = panels('CallService')
    assert len(buttons) == 2
    for panel in buttons:
        assert graph[panel['serviceName']] == 'std_srvs/srv/Trigger'
        assert json.loads(panel['requestPayload']) == {}


def test_rviz_shows_pictures_in_a_quality_that_fits(graph):
    displays = yaml.safe_load(RVIZ.read_text())['Visualization Manager']['Displays']
    topics = {
        display['Name']: display.get('Topic', display.get('Description Topic'))
        for display in displays
        if {'Topic', 'Description Topic'} & display.keys()
    }
    assert {t['Value'] for t in topics.values()} - ELSEWHERE == {
        '/sparkrt/debug/input/front',
        '/sparkrt/debug/input/wrist',
    }
    for topic in topics.values():
        if topic['Value'] not in ELSEWHERE:
            assert graph[topic['Value']] == 'sensor_msgs/msg/Image'
            assert topic['Reliability Policy'] == 'Best Effort'
            assert topic['Durability Policy'] == 'Volatile'


def test_a_field_that_is_not_there_is_noticed(graph):
    with pytest.raises(KeyError):
        field_type(graph['/sparkrt/status'], ['inference_p42'])
    with pytest.raises(AssertionError, match='no array'):
        field_type(graph['/sparkrt/status'], ['skew[0]'])
    assert field_type(graph['/sparkrt/status'], ['header', 'stamp', 'sec']) == 'int32'


def test_guard_counts_are_labelled_in_their_order(graph, session_peer):
    (guard,) = [p for p in panels('Plot') if 'guard' in p['foxglovePanelTitle'].lower()]
    status = session_peer.subscribe(StreamerStatus, '/action_streamer/status', qos.STATUS)
    kinds = status.wait_for().guard_kinds
    labels = {int(INDEX.fullmatch(p['value'])[0][-2]): p['label'] for p in guard['paths']}
    assert labels == dict(enumerate(kinds))
