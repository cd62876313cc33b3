"""Which settings of kernels serve: the best alone, then what is fastest in a row."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sparkrt_ros.runtime.kernels import pi_choice
from sparkrt_ros.runtime.kernels.pi_choice import STEP, Alone, Row
from sparkrt_ros.runtime.kernels.pi_ops import PLAIN

ONE_BY_ONE, OVERLAPPED, AHEAD, BOTH = (False, False), (True, False), (False, True), (True, True)
WAYS = [ONE_BY_ONE, OVERLAPPED, AHEAD, BOTH]


@dataclass
class Machine:
    """Chains with times of our choice. wrong: ways that give other bits; broken: that raise."""

    times: dict[Any, float]
    wrong: tuple[Any, ...] = ()
    broken: tuple[Any, ...] = ()
    layers: int = 2
    tried: list[Any] = field(default_factory=list)

    def make(self, *, settings: dict[str, Any], overlapped: bool, fetching: bool) -> Any:
        way = (overlapped, fetching)
        key = (way, tuple(sorted(settings.items())))
        made = {name: lambda: None for name in (*STEP, 'velocity')}
        made['project'] = lambda: key
        return SimpleNamespace(ops=lambda: SimpleNamespace(**made))

    def chain(self, ops: Any) -> tuple[torch.Tensor]:
        way, _ = key = ops.project()
        self.tried.append(key)
        if way in self.broken:
            raise RuntimeError('no such instruction')
        return (torch.tensor(1.0 if way in self.wrong else 0.0),)

    def seconds(self, run: Any) -> float:
        run()
        way, settings = self.tried[-1]
        chosen = self.times.get((way, dict(settings).get('feed')))
        return self.times[way] if chosen is None else chosen


@pytest.fixture
def row(monkeypatch: pytest.MonkeyPatch) -> Any:
    def start(machine: Machine, feed: dict[str, float] | None = None) -> Row:
        monkeypatch.setattr(pi_choice, 'captured_seconds', machine.seconds)
        alone = Alone(seconds={name: {'a': 1.0} for name in STEP})
        alone.seconds['feed'] = feed or {'a': 1.0}
        return Row(machine, machine.make, PLAIN, alone)

    return start


def test_the_first_setting_stays_unless_a_later_one_is_clearly_faster() -> None:
    alone = Alone(
        seconds={'feed': {'a': 1.0, 'b': 0.98, 'c': 0.9, 'd': 0.89}, 'rotate': {None: 0}}
    )
    assert alone.best('feed') == 'c'
    assert alone.settings() == {'feed': 'c'}
    assert list(alone.others('feed')) == ['a', 'b', 'd']
    alone.seconds['feed']['e'] = 2.0
    assert 'e' not in alone.others('feed')


@pytest.mark.parametrize('best', WAYS)
def test_the_fastest_way_to_launch_is_taken_and_told(row: Any, best: tuple[bool, bool]) -> None:
    machine = Machine(times={way: 8e-6 if way == best else 10e-6 for way in WAYS})
    chosen = row(machine)
    assert chosen.choose(WAYS).project()[0] == best
    assert f'{pi_choice._WAYS[best]} 4.0 us' in chosen.notes[0]


def test_noise_changes_nothing(row: Any) -> None:
    machine = Machine(times={way: 9.8e-6 if any(way) else 10e-6 for way in WAYS})
    assert row(machine).choose(WAYS).project()[0] == ONE_BY_ONE


def test_a_way_that_gives_other_bits_or_fails_never_serves(row: Any) -> None:
    machine = Machine(
        times={OVERLAPPED: 1e-6, AHEAD: 8e-6, BOTH: 1e-6, ONE_BY_ONE: 10e-6},
        wrong=(OVERLAPPED,),
        broken=(BOTH,),
    )
    chosen = row(machine)
    assert chosen.choose(WAYS).project()[0] == AHEAD
    assert 'overlapped differs' in chosen.notes[0]
    assert 'overlapped, weights read ahead fails: no such instruction' in chosen.notes[0]


def test_a_setting_that_is_better_in_a_row_takes_over(row: Any) -> None:
    times = {ONE_BY_ONE: 10e-6, OVERLAPPED: 8e-6, AHEAD: 9e-6, BOTH: 9e-6}
    machine = Machine(times={**times, (OVERLAPPED, 'b'): 6e-6, (OVERLAPPED, 'c'): 7e-6})
    chosen = row(machine, {'a': 1.0, 'b': 1.2, 'c': 1.1, 'd': 9.0})
    way, settings = chosen.choose(WAYS).project()
    assert (way, dict(settings)['feed']) == (OVERLAPPED, 'b')
    assert chosen.notes[1:] == ['in a row feed b: overlapped 3.0 us']
    assert not [1 for _, tried in machine.tried if dict(tried)['feed'] == 'd']
