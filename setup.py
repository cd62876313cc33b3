"""Build of the ROS-free distribution; everything else is declared in setup.cfg."""

from pathlib import Path

from setuptools import setup

setup(
    long_description=Path(__file__).with_name('README.md').read_text(encoding='utf-8'),
    long_description_content_type='text/markdown',
)
