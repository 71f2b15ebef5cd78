"""Figures of what a model has learned and how."""
