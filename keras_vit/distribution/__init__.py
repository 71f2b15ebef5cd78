"""Training on several devices and machines: layouts of the weights, and the processes of a run."""

from keras_vit.distribution.description import describe
from keras_vit.distribution.launch import join, launch
from keras_vit.distribution.layouts import data_parallel, device_mesh, fsdp, layout_map, tensor_parallel
from keras_vit.distribution.processes import initialize, num_processes, process_id
from keras_vit.distribution.split import distributed
from keras_vit.distribution.synchronization import synchronize

__all__ = [
    "data_parallel",
    "describe",
    "device_mesh",
    "distributed",
    "fsdp",
    "initialize",
    "join",
    "launch",
    "layout_map",
    "num_processes",
    "process_id",
    "synchronize",
    "tensor_parallel",
]
__dir__ = __all__.copy
