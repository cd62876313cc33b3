"""What of a contract may be exchanged while its robot moves."""

import copy

import pytest
from contract_samples import GOOD_CONTRACT, write_contract

from sparkrt_ros.convert.contract import load_contract
from sparkrt_ros.convert.contract_change import check_only_limits_differ
from sparkrt_ros.runtime.errors import ContractError


@pytest.fixture
def changed(tmp_path):
    """``changed(change)``: the sample contract, and the same after ``change`` of its mapping."""

    def make(change):
        now = load_contract(write_contract(tmp_path, GOOD_CONTRACT))
        content = copy.deepcopy(GOOD_CONTRACT)
        change(content)
        return now, load_contract(write_contract(tmp_path, content))

    return make


@pytest.mark.parametrize(
    'change',
    [
        lambda c: c['joints'][0].update(limits=[-0.5, 0.5], max_velocity=1),
        lambda c: c['joints'][1].update(max_acceleration=1.0),
        lambda c: c['joints'][2].pop('max_acceleration'),
        lambda c: c.update(control_rate_hz=100, hold_s=2.0),
        lambda c: c.update(name='slower', description='for tests'),
    ],
)
def test_limits_and_rates_are_free(changed, change):
    now, new = changed(change)
    assert new != now
    check_only_limits_differ(now, new)


@pytest.mark.parametrize(
    ('change', 'part'),
    [
        (lambda c: c['joints'][0].update(sign=1), 'joints'),
        (lambda c: c['joints'][1].update(range=[0.4, -0.4]), 'joints'),
        (lambda c: c['joints'][1].update(offset=0.2), 'joints'),
        (lambda c: c['joints'].reverse(), 'joints'),
        (lambda c: c.update(policy_rate_hz=20), 'policy_rate_hz'),
        (lambda c: c['action']['outputs'][0].update(topic='other'), 'outputs'),
        (lambda c: c['action']['vector'].reverse(), 'action'),
        (lambda c: c['state']['streams'][0].update(max_age_s=0.3), 'state_streams'),
        (lambda c: c['cameras'][0].update(topic='other'), 'cameras'),
    ],
)
def test_everything_else_is_refused_by_name(changed, change, part):
    now, new = changed(change)
    with pytest.raises(ContractError, match=f'found another {part} than test has') as caught:
        check_only_limits_differ(now, new)
    assert 'deactivate the node' in str(caught.value)
