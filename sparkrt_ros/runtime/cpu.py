"""Which instructions the processor has. Imports no torch."""

from __future__ import annotations

from pathlib import Path

INT8 = frozenset({'avx512_vnni', 'avx_vnni', 'amx_int8'})
BF16 = frozenset({'avx512_bf16', 'amx_bf16'})
"""Names of the system for instructions that multiply and add up in these types."""

_CPUINFO = Path('/proc/cpuinfo')


def cpu_flags(path: Path = _CPUINFO) -> frozenset[str]:
    """The flags of the first processor, as Linux names them; none where it does not tell."""
    try:
        lines = path.read_text(encoding='utf-8', errors='replace').splitlines()
    except OSError:
        return frozenset()
    for line in lines:
        name, _, value = line.partition(':')
        if name.strip() in ('flags', 'Features'):
            return frozenset(value.split())
    return frozenset()
