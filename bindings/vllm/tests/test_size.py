"""The connector stays small: at most 500 lines of code, without comments, documentation and blank lines."""

from __future__ import annotations

import ast
import io
import tokenize
from pathlib import Path

import ferry_vllm

LINES_MAX = 500
BLANK = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
    tokenize.ENCODING,
}


def lines_of(source: str) -> int:
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in BLANK:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and ast.get_docstring(node) is not None:
            lines.difference_update(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    return len(lines)


def test_the_connector_stays_small() -> None:
    files = sorted(Path(ferry_vllm.__file__).parent.glob("*.py"))
    counts = {file.name: lines_of(file.read_text()) for file in files}
    assert sum(counts.values()) <= LINES_MAX, counts
