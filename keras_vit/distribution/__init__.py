"""Trains one model on several devices and machines."""

from keras_vit.distribution.description import describe
from keras_vit.distribution.layouts import (
    data_parallel,
    device_mesh,
    distributed,
    fsdp,
    layout_map,
    tensor_parallel,
)
from keras_vit.distribution.processes import initialize, launch, num_processes, process_id
from keras_vit.distribution.synchronization import ReduceMetrics, reduce_metrics, synchronize

__all__ = [
    "ReduceMetrics",
    "data_parallel",
    "describe",
    "device_mesh",
    "distributed",
    "fsdp",
    "initialize",
    "launch",
    "layout_map",
    "num_processes",
    "process_id",
    "reduce_metrics",
    "synchronize",
    "tensor_parallel",
]
__dir__ = __all__.copy
