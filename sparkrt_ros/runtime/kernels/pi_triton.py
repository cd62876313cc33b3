"""The operations of a fused Pi0 or Pi0.5 by Triton kernels, each in one of several settings.

See ``pi_ops`` for what they compute. Importing this needs Triton.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import triton
from torch import Tensor

from sparkrt_ros.runtime.kernels import attention_kernels, flow_kernels
from sparkrt_ros.runtime.kernels.pi_ops import NORM_EPS, ROWS, Heads, PiOps, Stream, Turn
from sparkrt_ros.runtime.kernels.pi_settings import CANDIDATES, Setting
from sparkrt_ros.runtime.kernels.pi_triton_prefix import add_norm, geglu, rotate

_ROWS_OF_ATTENTION = 132
_LOG2_E = 1.4426950408889634


@dataclass(frozen=True, kw_only=True)
class TritonOps:
    """Makes the operations; settings: by operation, the first candidate where none is named.

    overlapped: launch each kernel of a step before the one ahead of it has ended; it then waits
    by itself. fetching: read the weights called ``ahead`` into the L2 cache. Both need compute
    capability 9.
    """

    settings: dict[str, Setting] = field(default_factory=dict)
    overlapped: bool = False
    fetching: bool = False

    def ops(self) -> PiOps:
        """All operations."""
        return PiOps(
            prepare=self.prepare,
            project=self.project,
            attend=self.attend,
            add_attended=partial(self._add, 'add_attended'),
            feed=self.feed,
            add_fed=partial(self._add, 'add_fed'),
            velocity=self.velocity,
            add_norm=add_norm,
            rotate=rotate,
            look=self.look,
            geglu=geglu,
        )

    def prepare(self, stream: Stream, x: Tensor, grow: Tensor) -> None:
        """See ``pi_ops.prepare``."""
        flow_kernels.prepare[(stream.rows,)](
            x.contiguous(),
            grow,
            stream.x,
            stream.scaled,
            stream.squares,
            stream.width,
            BLOCK=triton.next_power_of_2(stream.width),
            num_warps=4,
            **self._launch(),
        )
        stream.tiles = 1

    def project(
        self,
        stream: Stream,
        weight: Tensor,
        bias: Tensor,
        turn: Turn,
        heads: Heads,
        *,
        ahead: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """See ``pi_ops.project``."""
        setting = self._setting('project')
        half = heads.size // 2
        columns = _divisor(half, setting.columns)
        shape = (stream.samples, heads.keys, stream.tokens, heads.size)
        keys, values = weight.new_empty(shape), weight.new_empty(shape)
        queries = weight.new_empty(stream.samples, heads.queries, stream.tokens, heads.size)
        grid = ((heads.queries + 2 * heads.keys) * (half // columns), _blocks(stream, setting))
        flow_kernels.project[grid](
            stream.scaled,
            weight,
            bias,
            stream.squares,
            turn.cos,
            turn.sin,
            queries,
            keys,
            values,
            *_ahead(ahead, weight),
            stream.rows,
            stream.tokens,
            stream.width,
            stream.tiles,
            stream.x.shape[0],
            NORM_EPS,
            HEADS=heads.queries,
            GROUPS=heads.keys,
            HALF=half,
            TILES=triton.next_power_of_2(stream.tiles),
            **_tile(setting, columns=columns, inner=stream.width),
            **self._launch_fetching(setting, ahead),
        )
        return queries, keys, values

    def attend(
        self,
        queries: Tensor,
        own_keys: Tensor,
        own_values: Tensor,
        keys: Tensor,
        values: Tensor,
        valid: Tensor,
        *,
        state_first: bool = False,
        ahead: Tensor | None = None,
    ) -> Tensor:
        """See ``pi_ops.attend``."""
        setting = self._setting('attend')
        samples, heads, tokens, size = queries.shape
        groups, prefix = keys.shape[1:3]
        rows = heads // groups * tokens
        blocks = triton.cdiv(rows, setting.rows) * samples * groups
        wanted = setting.parts or max(_ROWS_OF_ATTENTION // blocks - 1, 1)
        share = triton.cdiv(triton.cdiv(prefix, setting.columns), wanted) * setting.columns
        splits = triton.cdiv(prefix, share) + 1
        pairs = samples * groups
        parts = torch.empty(pairs, splits, rows, size, device=queries.device)
        best, total = torch.empty(2, pairs, splits, rows, device=queries.device)
        self._attend(
            setting,
            (queries, keys, values, own_keys, own_values, valid, parts, best, total),
            share=share,
            splits=splits,
            state_first=state_first,
            at_once=False,
            ahead=ahead,
            launch=self._launch_fetching(setting, ahead),
        )
        mixed = _rows(queries, samples * tokens, heads * size)
        attention_kernels.combine[(rows, pairs)](
            parts,
            best,
            total,
            mixed,
            tokens,
            splits,
            NEIGHBOURS=heads // groups,
            GROUPS=groups,
            SIZE=size,
            SPLITS=triton.next_power_of_2(splits),
            num_warps=4,
            **self._launch(),
        )
        return mixed

    def look(self, queries: Tensor, keys: Tensor, values: Tensor, valid: Tensor) -> Tensor:
        """See ``pi_ops.look``."""
        samples, heads, tokens, size = queries.shape
        mixed = queries.new_empty(samples * tokens, heads * size)
        setting = self._setting('look')
        self._attend(
            setting,
            (queries, keys, values, keys, values, valid, mixed, mixed, mixed),
            share=tokens,
            splits=1,
            own=0,
            at_once=True,
            launch={**_warps(setting), 'PDL': False, 'FETCH': False, 'LANES': 0},
        )
        return mixed

    def feed(
        self, stream: Stream, weight: Tensor, bias: Tensor, *, ahead: Tensor | None = None
    ) -> Tensor:
        """See ``pi_ops.feed``."""
        setting = self._setting('feed')
        inner = weight.shape[0] // 2
        columns = _divisor(inner, setting.columns)
        hidden = weight.new_empty(stream.x.shape[0], inner)
        flow_kernels.feed[(inner // columns, _blocks(stream, setting))](
            stream.scaled,
            weight,
            bias,
            stream.squares,
            hidden,
            *_ahead(ahead, weight),
            stream.rows,
            stream.width,
            inner,
            stream.tiles,
            stream.x.shape[0],
            NORM_EPS,
            TILES=triton.next_power_of_2(stream.tiles),
            **_tile(setting, columns=columns, inner=stream.width),
            **self._launch_fetching(setting, ahead),
        )
        return hidden

    def velocity(
        self,
        stream: Stream,
        grow: Tensor,
        shift: Tensor,
        weight: Tensor,
        bias: Tensor,
        *,
        tokens: int,
    ) -> Tensor:
        """See ``pi_ops.velocity``."""
        size = weight.shape[0]
        out = torch.empty(stream.samples, tokens, size, device=weight.device)
        flow_kernels.velocity[(stream.samples * tokens,)](
            stream.x,
            grow,
            shift,
            weight,
            bias,
            out,
            tokens,
            stream.tokens,
            stream.width,
            size,
            NORM_EPS,
            BLOCK=triton.next_power_of_2(stream.width),
            OUTPUTS=8,
            num_warps=8,
            **self._launch(),
        )
        return out

    def _setting(self, name: str) -> Setting:
        return self.settings.get(name, CANDIDATES[name][0])

    def _launch(self, setting: Setting | None = None) -> dict[str, Any]:
        options = {} if setting is None else _warps(setting)
        options['PDL'] = self.overlapped
        if self.overlapped:
            options['launch_pdl'] = True
        return options

    def _launch_fetching(self, setting: Setting, ahead: Tensor | None) -> dict[str, Any]:
        fetch = self.fetching and ahead is not None
        return {**self._launch(setting), 'FETCH': fetch, 'LANES': 32 * setting.warps}

    def _add(
        self,
        name: str,
        stream: Stream,
        x: Tensor,
        weight: Tensor,
        gate: Tensor,
        grow: Tensor,
        *,
        ahead: Tensor | None = None,
    ) -> None:
        """See ``pi_ops.add``."""
        setting = self._setting(name)
        width, inner = weight.shape
        columns = _divisor(width, setting.columns)
        parts = _divisor(inner // 16, setting.parts)
        tiles, blocks = width // columns, _blocks(stream, setting)
        sums = torch.empty(
            blocks * tiles * parts * ROWS * columns if parts > 1 else 1, device=x.device
        )
        flow_kernels.add[(tiles, parts, blocks)](
            x,
            weight,
            stream.x,
            gate,
            grow,
            stream.scaled,
            stream.squares,
            sums,
            stream.arrivals,
            *_ahead(ahead, weight),
            stream.rows,
            inner,
            inner // parts,
            width,
            stream.x.shape[0],
            SPLITS=parts,
            **_tile(setting, columns=columns, inner=inner // parts),
            **self._launch_fetching(setting, ahead),
        )
        stream.tiles = tiles

    def _attend(
        self,
        setting: Setting,
        tensors: tuple[Tensor, ...],
        *,
        share: int,
        splits: int,
        at_once: bool,
        launch: dict[str, Any],
        ahead: Tensor | None = None,
        own: int | None = None,
        state_first: bool = False,
    ) -> None:
        queries, keys, _, own_keys = tensors[:4]
        samples, heads, tokens, size = queries.shape
        groups, prefix = keys.shape[1:3]
        grid = (triton.cdiv(heads // groups * tokens, setting.rows), splits, samples * groups)
        attention_kernels.attend[grid](
            *tensors,
            *_ahead(ahead, keys),
            tokens,
            prefix,
            own_keys.shape[2] if own is None else own,
            share,
            splits,
            _LOG2_E / math.sqrt(size),
            NEIGHBOURS=heads // groups,
            GROUPS=groups,
            SIZE=size,
            STATE_FIRST=state_first,
            ALL_AT_ONCE=at_once,
            BLOCK_M=setting.rows,
            BLOCK_N=setting.columns,
            **launch,
        )


def _ahead(weight: Tensor | None, instead: Tensor) -> tuple[Tensor, int]:
    """What to read ahead, and its bytes: whole lines of 16; none of ``instead``."""
    if weight is None:
        return instead, 0
    return weight, weight.numel() * weight.element_size() // 16 * 16


def _rows(like: Tensor, rows: int, width: int) -> Tensor:
    """Memory for rows that a product reads in whole tiles."""
    return like.new_empty(-(-rows // ROWS) * ROWS, width)


def _blocks(stream: Stream, setting: Setting) -> int:
    return stream.x.shape[0] // setting.rows


def _divisor(size: int, wanted: int) -> int:
    """The largest power of two up to ``wanted`` that divides ``size``."""
    return math.gcd(size, wanted)


def _tile(setting: Setting, *, columns: int, inner: int) -> dict[str, int]:
    depth = _divisor(inner, setting.depth)
    return {'BLOCK_M': setting.rows, 'BLOCK_N': columns, 'BLOCK_K': depth}


def _warps(setting: Setting) -> dict[str, Any]:
    return {'num_warps': setting.warps, 'num_stages': setting.stages}
