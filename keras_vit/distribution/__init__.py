from keras_vit.distribution.description import describe
from keras_vit.distribution.layouts import data_parallel, device_mesh, fsdp, layout_map, tensor_parallel
from keras_vit.distribution.processes import initialize
from keras_vit.distribution.split import distributed
from keras_vit.distribution.synchronization import synchronize

__all__ = [
    "data_parallel",
    "describe",
    "device_mesh",
    "distributed",
    "fsdp",
    "initialize",
    "layout_map",
    "synchronize",
    "tensor_parallel",
]
