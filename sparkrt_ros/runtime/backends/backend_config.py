"""What can be chosen about a backend. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sparkrt_ros.runtime.errors import ConfigError

COMPILE_MODES = ('default', 'max-autotune-no-cudagraphs')


@dataclass(frozen=True, kw_only=True)
class BackendConfig:
    """One backend with its options.

    kind: its name; see ``registry.BACKEND_NAMES``.
    compile_mode: of ``torchcompile``. Modes with CUDA graphs of their own are none of them: what
        is compiled is captured like everything else.
    warm_up_runs: of ``cudagraph`` and ``torchcompile``, before a region is recorded.
    allow_tf32: round the operands of fp32 products to TF32 on CUDA devices.
    Raises ConfigError naming the option; an unknown kind is refused when a backend is made.
    """

    kind: str = 'eager'
    compile_mode: str = 'default'
    warm_up_runs: int = 3
    allow_tf32: bool = False

    def __post_init__(self) -> None:
        if self.compile_mode not in COMPILE_MODES:
            raise ConfigError(
                'compile_mode',
                found=repr(self.compile_mode),
                expected=f'one of {", ".join(COMPILE_MODES)}',
                remedy='modes with CUDA graphs of their own are replaced by our capture',
            )
        if isinstance(self.warm_up_runs, bool) or not 1 <= self.warm_up_runs <= 100:
            raise ConfigError(
                'warm_up_runs', found=repr(self.warm_up_runs), expected='between 1 and 100'
            )

    def options(self) -> dict[str, Any]:
        """The arguments that its class takes beside the device."""
        options: dict[str, Any] = {'allow_tf32': self.allow_tf32}
        if self.kind in ('cudagraph', 'torchcompile'):
            options['warm_up_runs'] = self.warm_up_runs
        if self.kind == 'torchcompile':
            options['mode'] = self.compile_mode
        return options
