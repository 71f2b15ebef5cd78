import keras
import numpy as np
from keras import ops

from keras_vit.layers import hardware


def test_a_gpu_is_a_device_that_is_no_cpu(monkeypatch):
    if keras.backend.backend() == "torch":
        import torch

        assert hardware.has_gpu.__wrapped__() is torch.cuda.is_available()
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        assert hardware.has_gpu.__wrapped__() is True
        return
    for device, expected in {"cpu:0": False, "gpu:0": True}.items():
        monkeypatch.setattr(keras.distribution, "list_devices", lambda device=device: [device])
        assert hardware.has_gpu.__wrapped__() is expected


def test_torch_tensors_of_a_cpu_are_computed_there_unless_traced():
    x = ops.convert_to_tensor(np.ones((2, 3), "float32"))
    if keras.backend.backend() != "torch":
        assert not hardware.is_computed_on_cpu(x)
        return
    import torch

    assert hardware.is_computed_on_cpu(x.cpu())
    assert not hardware.is_computed_on_cpu(x.to("meta"))
    found = []
    torch.jit.trace(lambda x: (found.append(hardware.is_computed_on_cpu(x)), x + 1)[1], x.cpu(), check_trace=False)
    assert found == [False]


def test_processor_where_there_is_no_file_of_it(monkeypatch):
    monkeypatch.setattr(hardware.Path, "read_text", lambda *args, **kwargs: (_ for _ in ()).throw(OSError()))
    monkeypatch.setattr(hardware.platform, "processor", lambda: "a processor")
    assert hardware.processor.__wrapped__() == "a processor"
