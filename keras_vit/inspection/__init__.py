"""Figures of what a model has learned and how."""

from keras_vit.inspection.plots import plot_history, plot_predictions

__all__ = ["plot_history", "plot_predictions"]
