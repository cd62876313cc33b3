"""The look of every page and figure this package writes: one palette, on screen and on paper.

Figures are drawn with the colours of ``FIGURE_COLOURS``; in a page each of them becomes the style
sheet's variable of that name, so that a figure follows the reader's light or dark setting.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

# The hues are Okabe and Ito's, which stay apart for colour-blind readers.
SERIES = ('#0072b2', '#d55e00', '#009e73', '#cc79a7', '#56b4e9', '#e69f00')
INK, SOFT, GRID, REFERENCE = '#000000', '#57606a', '#d8dee4', '#8c959f'
PAPER = '#ffffff'
PASS, WARN, FAIL = '#1a7f37', '#9a6700', '#cf222e'
ZERO, NOT_FINITE, UNKNOWN = '#cfe8e3', '#7b1fa2', '#e1e4e8'

FIGURE_COLOURS: Mapping[str, str] = MappingProxyType(
    {
        INK: '--ink',
        PAPER: '--paper',
        SOFT: '--soft',
        GRID: '--line',
        REFERENCE: '--reference',
        PASS: '--pass',
        WARN: '--warn',
        FAIL: '--fail',
        NOT_FINITE: '--notfinite',
        **{colour: f'--series{index}' for index, colour in enumerate(SERIES)},
    }
)
"""Colour of a figure -> variable of the style sheet."""

FIGURE_SETTINGS: Mapping[str, object] = MappingProxyType(
    {
        'text.parse_math': False,
        'font.size': 9,
        'axes.titlesize': 9,
        'axes.labelsize': 9,
        'axes.labelcolor': SOFT,
        'axes.edgecolor': REFERENCE,
        'axes.spines.top': False,
        'axes.spines.right': False,
        'axes.linewidth': 0.7,
        'axes.axisbelow': True,
        'axes.formatter.useoffset': False,
        'axes.grid': True,
        'grid.color': GRID,
        'legend.edgecolor': GRID,
        'grid.linewidth': 0.6,
        'xtick.color': REFERENCE,
        'ytick.color': REFERENCE,
        'xtick.labelcolor': SOFT,
        'ytick.labelcolor': SOFT,
        'xtick.labelsize': 8,
        'ytick.labelsize': 8,
        'xtick.major.width': 0.7,
        'ytick.major.width': 0.7,
        'lines.solid_capstyle': 'round',
    }
)
"""Settings of matplotlib. Formulas are off: a ``$`` in a joint's name is a ``$``."""

STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --soft: #57606a; --line: #d8dee4;
  --paper: #ffffff; --panel: #f6f8fa; --reference: #8c959f; --pass: #1a7f37; --warn: #8a5a00;
  --fail: #cf222e; --passpaper: #e6f6ea; --warnpaper: #fff5d6; --failpaper: #ffebe9;
  --notfinite: #7b1fa2; --series0: #0072b2; --series1: #d55e00;
  --series2: #009e73; --series3: #b4538a; --series4: #3d9bd1; --series5: #b97e00; }
@media screen and (prefers-color-scheme: dark) { :root { --ink: #e6edf3; --soft: #9aa5b1;
  --line: #30363d; --paper: #0f1318; --panel: #171c23; --reference: #848d97; --pass: #4cc26a;
  --warn: #dbab3c; --fail: #ff7b72; --passpaper: #11281a; --warnpaper: #2c2410;
  --failpaper: #341a1d; --notfinite: #d39bf0; --series0: #58a9e0;
  --series1: #ef8345; --series2: #35c295; --series3: #dd93bb; --series4: #7cc4ee;
  --series5: #e3b341; } }
* { box-sizing: border-box; }
body { font: 15px/1.55 system-ui, -apple-system, 'Segoe UI', 'Noto Sans', sans-serif;
  margin: 2rem auto 4rem; max-width: 1180px; padding: 0 1.4rem; color: var(--ink);
  background: var(--paper); }
h1 { margin: 0 0 .2rem; font-size: 1.75rem; line-height: 1.2; overflow-wrap: anywhere; }
h2 { margin: 2.6rem 0 .35rem; font-size: 1.2rem; line-height: 1.3; }
h3 { margin: 1.4rem 0 .3rem; font-size: 1rem; }
p.note { color: var(--soft); margin: .2rem 0 .8rem; max-width: 62rem; }
a { color: var(--series0); }
code, .mono { font: .86em/1.5 ui-monospace, 'SFMono-Regular', 'DejaVu Sans Mono', monospace;
  overflow-wrap: anywhere; }
svg { width: 100%; height: auto; display: block; }
svg text { fill: var(--ink); font-family: system-ui, 'Segoe UI', 'Noto Sans', sans-serif
  !important; }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(160px, 1fr)); gap: .8rem;
  margin-top: 1.2rem; }
.card { border: 1px solid var(--line); border-radius: 10px; padding: .7rem .9rem; }
.card b { display: block; font-size: 1.5rem; line-height: 1.2; }
.card span { color: var(--soft); font-size: .85rem; }
.good b { color: var(--pass); } .bad b { color: var(--fail); }
.strip { display: grid; gap: 4px; }
.strip img { width: 100%; border-radius: 4px; display: block; }
.strip small { color: var(--soft); }
.wide { overflow-x: auto; }
table { border-collapse: collapse; }
td, th { padding: .15rem .9rem .15rem 0; text-align: left; vertical-align: top; }
@media print { body { margin: 0; max-width: none; padding: 0; font-size: 10pt; }
  h2, h3, summary, p.note, .legend { break-after: avoid; }
  .wide { overflow: visible; } table { font-size: 8pt; }
  svg, .card, tr, figure { break-inside: avoid; }
  * { print-color-adjust: exact; -webkit-print-color-adjust: exact; } }
"""
"""Style sheet of every page; a page may add its own after it."""


def css(colour: str) -> str:
    """The colour of a figure as a page writes it: by its variable where it has one."""
    variable = FIGURE_COLOURS.get(colour)
    return colour if variable is None else f'var({variable})'
