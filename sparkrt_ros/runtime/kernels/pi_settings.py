"""In which settings each Triton kernel of a fused Pi0 or Pi0.5 may serve."""

from __future__ import annotations

from dataclasses import dataclass

from sparkrt_ros.runtime.kernels.pi_ops import ROWS


@dataclass(frozen=True, kw_only=True)
class Setting:
    """How a kernel divides its work. parts: of the sum, or of the keys; 0: one per processor."""

    rows: int = ROWS
    columns: int = 32
    depth: int = 128
    parts: int = 1
    warps: int = 4
    stages: int = 4

    def __str__(self) -> str:
        return f'{self.rows}x{self.columns}x{self.depth}/{self.parts} w{self.warps} s{self.stages}'


# The first of each is what reasoning says is best on 132 processors; see docs/pi05.md.
CANDIDATES: dict[str, tuple[Setting, ...]] = {
    'project': (
        Setting(columns=16, depth=128, stages=5),
        Setting(columns=16, depth=256, stages=3),
        Setting(columns=16, depth=64, stages=8),
        Setting(columns=16, depth=128, stages=3),
    ),
    'feed': (
        Setting(columns=32, depth=128, stages=4),
        Setting(columns=32, depth=64, stages=6),
        Setting(columns=16, depth=128, stages=5),
        Setting(columns=32, depth=64, stages=4),
    ),
    'add_attended': (
        Setting(columns=32, depth=128, parts=4, stages=4),
        Setting(columns=64, depth=128, parts=8, stages=3),
        Setting(columns=16, depth=256, parts=2, stages=4),
        Setting(columns=32, depth=64, parts=4, stages=4),
        Setting(columns=16, depth=128, parts=2, stages=3),
    ),
    'add_fed': (
        Setting(columns=32, depth=128, parts=4, stages=5),
        Setting(columns=64, depth=128, parts=8, stages=4),
        Setting(columns=16, depth=256, parts=2, stages=4),
        Setting(columns=32, depth=64, parts=4, stages=5),
        Setting(columns=16, depth=128, parts=2, stages=4),
    ),
    'attend': (
        Setting(rows=64, columns=64, parts=0, warps=4, stages=2),
        Setting(rows=32, columns=64, parts=0, warps=4, stages=2),
        Setting(rows=64, columns=32, parts=0, warps=4, stages=3),
        Setting(rows=64, columns=64, parts=8, warps=4, stages=2),
        Setting(rows=32, columns=64, parts=8, warps=4, stages=2),
        Setting(rows=64, columns=64, parts=8, warps=8, stages=2),
    ),
    'look': (
        Setting(rows=64, columns=64, warps=4, stages=2),
        Setting(rows=128, columns=64, warps=8, stages=2),
        Setting(rows=64, columns=32, warps=4, stages=3),
        Setting(rows=64, columns=64, warps=8, stages=2),
        Setting(rows=64, columns=128, warps=8, stages=1),
        Setting(rows=128, columns=32, warps=8, stages=3),
    ),
}
"""By operation; operations that are not here have one setting."""
