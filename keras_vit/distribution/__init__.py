from keras_vit.distribution.description import describe
from keras_vit.distribution.layouts import data_parallel, device_mesh, fsdp, layout_map, tensor_parallel

__all__ = ["data_parallel", "describe", "device_mesh", "fsdp", "layout_map", "tensor_parallel"]
