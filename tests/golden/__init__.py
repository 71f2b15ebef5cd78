"""Weights and answers of the sources' own code, and the scripts that make and check them: see README.md."""

from pathlib import Path

GOLDEN_FOLDER = Path(__file__).parent
