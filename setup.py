"""Build of the ROS-free distribution; everything else is declared in setup.cfg."""

from pathlib import Path

from setuptools import setup

ROOT = Path(__file__).parent

setup(
    long_description=(ROOT / 'README.md').read_text(encoding='utf-8'),
    long_description_content_type='text/markdown',
    # The same place below the prefix as colcon installs them to.
    data_files=[
        (
            'share/sparkrt/config/robots',
            [str(path.relative_to(ROOT)) for path in sorted(ROOT.glob('config/robots/*.yaml'))],
        )
    ],
)
