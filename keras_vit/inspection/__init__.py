"""Figures of what a model has learned and how, each first as an array."""

from keras_vit.inspection.attention_distance import attention_distance
from keras_vit.inspection.attention_maps import attention_maps
from keras_vit.inspection.attention_plots import (
    attention_overlay,
    plot_attention_distance,
    plot_attention_maps,
    plot_attention_rollout,
)
from keras_vit.inspection.filters import embedding_filters
from keras_vit.inspection.gradient_rollout import gradient_rollout
from keras_vit.inspection.plots import plot_history, plot_predictions
from keras_vit.inspection.position_similarity import position_similarity
from keras_vit.inspection.report import write_report
from keras_vit.inspection.rollout import attention_rollout
from keras_vit.inspection.tensorboard import TensorBoardAttention
from keras_vit.inspection.watch import PatchLayout, patch_layout
from keras_vit.inspection.weight_plots import plot_embedding_filters, plot_position_similarity

__all__ = [
    "PatchLayout",
    "TensorBoardAttention",
    "attention_distance",
    "attention_maps",
    "attention_overlay",
    "attention_rollout",
    "embedding_filters",
    "gradient_rollout",
    "patch_layout",
    "plot_attention_distance",
    "plot_attention_maps",
    "plot_attention_rollout",
    "plot_embedding_filters",
    "plot_history",
    "plot_position_similarity",
    "plot_predictions",
    "position_similarity",
    "write_report",
]
