"""Weights and answers of the sources' own code. The scripts that are here made the files that they name."""

from pathlib import Path

GOLDEN_FOLDER = Path(__file__).parent
