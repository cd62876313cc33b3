"""docs/bug_reports.md: every report has tests that exist, and every such test is listed."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TABLE = (ROOT / 'docs' / 'bug_reports.md').read_text()
ROWS = re.findall(r'^\| ([A-Z]\d+) \| (.*) \|$', TABLE, re.MULTILINE)
IDS = (
    *('I1', 'I3', 'I5', 'I6', 'I8', 'I10', 'J1', 'J3', 'T1', 'T2', 'D1', 'E1', 'E2', 'E3', 'E6'),
    *('P1', 'P2', 'P6', 'P8', 'C1', 'C3', 'O1', 'B1', 'B2', 'B4'),
)


def cited(cells: str) -> list[str]:
    return re.findall(r'`(test/[^`]+)`', cells.split(' | ')[-1])


def names_in(path: Path) -> set[str]:
    tree = ast.parse(path.read_text())
    return {node.name for node in tree.body if isinstance(node, (ast.FunctionDef, ast.ClassDef))}


def test_every_report_is_there_once():
    assert tuple(name for name, _ in ROWS) == IDS


@pytest.mark.parametrize(('name', 'cells'), ROWS, ids=[name for name, _ in ROWS])
def test_a_report_has_sources_an_answer_and_tests_that_exist(name: str, cells: str):
    sources, failure, answer, _ = cells.split(' | ')
    assert re.search(r'[\w.-]+/[\w.-]+#\d+', sources)
    assert failure.endswith('.')
    assert answer.rstrip().endswith(('.', '`'))
    tests = cited(cells)
    assert tests
    for test in tests:
        file, _, function = test.partition('::')
        path = ROOT / file
        assert path.is_file(), test
        found = names_in(path)
        assert any(item.startswith(('test_', 'Test')) for item in found), test
        assert not function or function in found, test


def test_every_file_of_bug_tests_belongs_to_a_report():
    named = {test.partition('::')[0] for _, cells in ROWS for test in cited(cells)}
    files = {f'test/bugs/{path.name}' for path in (ROOT / 'test' / 'bugs').glob('test_*.py')}
    assert files <= named
