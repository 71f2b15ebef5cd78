"""Computes and plots attention, weights, training histories and predictions."""

from keras_vit.inspection.attention import attention_distance, attention_maps, attention_rollout, token_attention_maps
from keras_vit.inspection.attention_plots import (
    TensorBoardAttention,
    attention_overlay,
    plot_attention_distance,
    plot_attention_maps,
    plot_attention_rollout,
    plot_token_attention,
)
from keras_vit.inspection.gradients import grad_cam, gradient_rollout
from keras_vit.inspection.inputs import patch_layout
from keras_vit.inspection.plots import plot_history, plot_predictions
from keras_vit.inspection.report import write_report
from keras_vit.inspection.weights import (
    embedding_filters,
    plot_embedding_filters,
    plot_position_similarity,
    position_similarity,
)
from keras_vit.prediction.taps import PatchLayout

__all__ = [
    "PatchLayout",
    "TensorBoardAttention",
    "attention_distance",
    "attention_maps",
    "attention_overlay",
    "attention_rollout",
    "embedding_filters",
    "grad_cam",
    "gradient_rollout",
    "patch_layout",
    "plot_attention_distance",
    "plot_attention_maps",
    "plot_attention_rollout",
    "plot_embedding_filters",
    "plot_history",
    "plot_position_similarity",
    "plot_predictions",
    "plot_token_attention",
    "position_similarity",
    "token_attention_maps",
    "write_report",
]
__dir__ = __all__.copy
