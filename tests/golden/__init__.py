"""Weights and outputs of the original code, with the scripts that make and check them. README.md explains them."""

from pathlib import Path

GOLDEN_FOLDER = Path(__file__).parent
