"""Checks the sentences of comments and docstrings, and the names of functions."""

import ast
import functools
import io
import re
import tokenize
from pathlib import Path

import pytest

import keras_vit

FILES = sorted(Path(keras_vit.__file__).parent.rglob("*.py"))
# A clause without a noun, and a place instead of a name.
REFUSED = {
    "headless clause": r"^(What|Whose|How|Whether|Where)\b",
    "place without a noun": r"\b(than|as|from|of|in) (here|there)\b",
}
# These may only become fewer.
COUNTED = {
    "pronoun without a noun": r"\b(those|that) (of|with|in|from|which)\b|\bthe others?\b",
    "opening without a subject": r"^(Of|Else|Otherwise|Not|Those|Such as|Apart|Without|By|For|Since|Also)\b",
    "files that speak": r"\b(tells?|told|says?|knows?|asks?|judges?)\b",
    "bookish words": r"\b(beside|alike|anew|for ever|nobody|goes on|as it is)\b",
}
CEILING = 2
MOST_WORDS = 40


def prose(path):
    """Yields (line, sentence) of the comments and docstrings of a file."""
    source = path.read_text(encoding="utf-8")
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string.lstrip("# ")
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and (text := ast.get_docstring(node)):
            for sentence in re.split(r"(?<=[.:])\s+", text.split("Example:")[0]):
                yield node.body[0].lineno, sentence


@functools.cache
def sentences():
    """Returns (path, line, sentence) of all files. Not read on import, since this takes two seconds."""
    return [(path, line, text) for path in FILES for line, text in prose(path)]


def matching(pattern):
    return [f"{path.name}:{line}: {text}" for path, line, text in sentences() if re.search(pattern, text)]


@pytest.mark.parametrize("name", REFUSED)
def test_no_sentence_has_a_refused_pattern(name):
    assert matching(REFUSED[name]) == []


def test_counted_patterns_stay_below_the_ceiling():
    found = {name: len(matching(pattern)) for name, pattern in COUNTED.items()}
    assert sum(found.values()) <= CEILING, found


def test_sentences_have_at_most_40_words():
    # Values in quotes are no words.
    long = [
        (path.name, line, text)
        for path, line, text in sentences()
        if len(re.findall(r"[A-Za-z]{2,}", re.sub(r'"[^"]*"|`[^`]*`', "", text))) > MOST_WORDS
    ]
    assert long == []


def test_no_function_is_named_after_its_argument():
    found = []
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef) and re.search(r"^_?of_|_of$", node.name) and node.name != "config_of":
                found.append(f"{path.name}: {node.name}")
    assert found == []
