"""Picks the operations of a fused Pi0 or Pi0.5 on a device, after trying and timing them there.

An operation that fails or computes something else is replaced by the plain one, by name and with
the reason. Settings are timed inside a CUDA graph over the weights of as many layers as there are,
so that weights come from memory and launches cost nothing, as when they serve. First each
operation alone, then those of a layer in a row, where launches may overlap and weights may be read
ahead: there the setting that is best alone need not be the best.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from sparkrt_ros.runtime.backends.turns import CAPTURES
from sparkrt_ros.runtime.checkpoint.pi_sizes import GemmaSizes
from sparkrt_ros.runtime.kernels.pi_ops import PLAIN, PiOps, first_line
from sparkrt_ros.runtime.kernels.pi_trial import Call, Trial

TOLERANCE = 0.03
"""Largest difference from the plain operation, over the largest value: a few roundings to bf16."""
GAIN = 1.03
"""How much faster a later setting has to be: noise of a few percent must change no choice."""
CLOSE = 1.5
"""How much slower than the best alone a setting may be to be tried in a row as well."""
STEP = ('project', 'attend', 'add_attended', 'feed', 'add_fed')
_REPLAYS = 7
# (overlapped, fetching), and what the receipt calls them.
_WAYS = {
    (False, False): 'one by one',
    (True, False): 'overlapped',
    (False, True): 'one by one, weights read ahead',
    (True, True): 'overlapped, weights read ahead',
}


@dataclass(frozen=True, kw_only=True)
class Choice:
    """ops: one form of every operation. notes: settings and refusals, for the receipt."""

    ops: PiOps
    notes: tuple[str, ...]


@functools.cache
def choose_pi_ops(
    sizes: GemmaSizes, *, device: torch.device, dtype: torch.dtype, tokens: int, prefix: int
) -> Choice:
    """Return the best operations here; the same ones for the same arguments in one process.

    sizes: of the expert. tokens: of one sample of it. prefix: tokens of a usual prefix.
    """
    if device.type != 'cuda':
        return Choice(ops=PLAIN, notes=(f'no kernels are known for {device.type}',))
    try:
        from sparkrt_ros.runtime.kernels.pi_triton import TritonOps
    except (ImportError, RuntimeError) as error:
        return Choice(ops=PLAIN, notes=(f'triton: {first_line(error)}',))
    trial = Trial(sizes, device=device, dtype=dtype, tokens=tokens, prefix=prefix)
    with torch.inference_mode(), torch.cuda.device(device):
        alone = choose_alone(trial, TritonOps)
        ops = replace(PLAIN, **alone.ops(TritonOps))
        if not set(STEP) <= alone.seconds.keys():
            return Choice(ops=ops, notes=tuple(alone.notes))
        row = Row(trial, TritonOps, ops, alone)
        ways = list(_WAYS) if torch.cuda.get_device_capability()[0] >= 9 else [(False, False)]
        chosen = row.choose(ways)
    return Choice(ops=chosen, notes=(*alone.notes, *row.notes))


@dataclass(kw_only=True)
class Alone:
    """By operation: seconds of each setting that is right (None: there is one only)."""

    seconds: dict[str, dict[Any, float]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def best(self, name: str) -> Any:
        """The first setting that no later one beats clearly."""
        found = None
        for setting, seconds in self.seconds[name].items():
            if found is None or seconds * GAIN < self.seconds[name][found]:
                found = setting
        return found

    def settings(self) -> dict[str, Any]:
        """The best one of each operation that has several."""
        best = {name: self.best(name) for name in self.seconds}
        return {name: setting for name, setting in best.items() if setting is not None}

    def ops(self, make: Callable[..., Any]) -> dict[str, Callable[..., Any]]:
        """Each operation that is right in one setting at least, in its best."""
        made = make(settings=self.settings()).ops()
        return {name: getattr(made, name) for name in self.seconds}

    def others(self, name: str) -> Iterator[Any]:
        """Settings near the best one in speed."""
        best = self.best(name)
        for setting, seconds in self.seconds[name].items():
            if setting != best and seconds < CLOSE * self.seconds[name][best]:
                yield setting


def choose_alone(trial: Trial, make: Callable[..., Any]) -> Alone:
    """Try every setting of every operation by itself."""
    from sparkrt_ros.runtime.kernels.pi_settings import CANDIDATES

    alone = Alone()
    for name, call in trial.calls.items():
        for setting in CANDIDATES.get(name, (None,)):
            op = getattr(make(settings={} if setting is None else {name: setting}).ops(), name)
            timed, plain = setting is not None, getattr(PLAIN, name)
            reason, seconds = judge(call, op, plain, timed=timed, layers=trial.layers)
            if reason:
                alone.notes.append(f'{name} {setting or ""}: {reason}')
            else:
                alone.seconds.setdefault(name, {})[setting] = seconds
        if name in alone.seconds and (best := alone.best(name)) is not None:
            alone.notes.append(f'{name} {best}: {alone.seconds[name][best] * 1e6:.1f} us')
        torch.cuda.empty_cache()
    return alone


class Row:
    """Looks for what is fastest with all operations of a step in a row. notes: for the receipt."""

    def __init__(self, trial: Trial, make: Callable[..., Any], ops: PiOps, alone: Alone) -> None:
        self.notes: list[str] = []
        self._trial, self._make, self._ops, self._alone = trial, make, ops, alone
        self._settings = alone.settings()

    def choose(self, ways: Sequence[tuple[bool, bool]]) -> PiOps:
        """Return the operations in the best of ``ways`` to launch them."""
        told, best, seconds = [], ways[0], self._seconds(self._settings, ways[0])
        told.append(self._tell(ways[0], seconds))
        for way in ways[1:]:
            reason, taken = self._try(self._settings, way)
            told.append(f'{_WAYS[way]} {reason}' if reason else self._tell(way, taken))
            if not reason and taken * GAIN < seconds:
                best, seconds = way, taken
        self.notes.append(f'a layer: {", ".join(told)}')
        self._improve(best, seconds)
        return self._with(self._settings, best)

    def _improve(self, way: tuple[bool, bool], seconds: float) -> None:
        """Try settings in a row that are close to the best alone, one operation after another."""
        for name in STEP:
            for setting in self._alone.others(name):
                settings = {**self._settings, name: setting}
                reason, taken = self._try(settings, way)
                if not reason and taken * GAIN < seconds:
                    self._settings, seconds = settings, taken
                    self.notes.append(f'in a row {name} {setting}: {self._tell(way, taken)}')

    def _try(self, settings: dict[str, Any], way: tuple[bool, bool]) -> tuple[str, float]:
        """Why it cannot serve, or nothing; and its seconds."""
        try:
            one_by_one = self._trial.chain(self._with(settings, (False, False)))
            if not _same(self._trial.chain(self._with(settings, way)), one_by_one):
                return 'differs', 0.0
            return '', self._seconds(settings, way)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # a driver may raise whatever it likes
            return f'fails: {first_line(error)}', 0.0

    def _seconds(self, settings: dict[str, Any], way: tuple[bool, bool]) -> float:
        return captured_seconds(partial(self._trial.chain, self._with(settings, way)))

    def _tell(self, way: tuple[bool, bool], seconds: float) -> str:
        return f'{_WAYS[way]} {seconds / self._trial.layers * 1e6:.1f} us'

    def _with(self, settings: dict[str, Any], way: tuple[bool, bool]) -> PiOps:
        made = self._make(settings=settings, overlapped=way[0], fetching=way[1]).ops()
        return replace(self._ops, **{name: getattr(made, name) for name in (*STEP, 'velocity')})


def judge(
    call: Call,
    op: Callable[..., Any],
    plain: Callable[..., Any],
    *,
    timed: bool,
    layers: int,
) -> tuple[str, float]:
    """Why an operation cannot serve, or nothing; and its seconds where they are asked for."""
    try:
        found, wanted = call(op, 0), call(plain, 0)
        for one, other in zip(found, wanted, strict=True):
            error = float((one.float() - other.float()).abs().max())
            if not error <= TOLERANCE * float(other.float().abs().max()):
                return f'differs from the plain operation by {error:.2g}', 0.0
        seconds = captured_seconds(lambda: [call(op, i) for i in range(layers)]) if timed else 0.0
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # a compiler may raise whatever it likes
        return f'fails: {first_line(error)}', 0.0
    return '', seconds / layers


def captured_seconds(run: Callable[[], object]) -> float:
    """The shortest of a few replays of what ``run`` launches."""
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        run()
        stream.synchronize()
        capture = torch.cuda.graph(graph, stream=stream, capture_error_mode='thread_local')
        with CAPTURES.alone(), capture:
            run()
        times = []
        for _ in range(_REPLAYS):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
            start.record()
            graph.replay()
            end.record()
            end.synchronize()
            times.append(start.elapsed_time(end) / 1e3)
    torch.cuda.current_stream().wait_stream(stream)
    return float(min(times))


def _same(found: Sequence[Tensor], wanted: Sequence[Tensor]) -> bool:
    return all(torch.equal(one, other) for one, other in zip(found, wanted, strict=True))
