import contextlib
import datetime
import os

import keras
import numpy as np
import pytest

from keras_vit.distribution.synchronization import check_synchronized
from keras_vit.training import Resume, fit

pytestmark = pytest.mark.backends("torch")


@contextlib.contextmanager
def world_of_two(folder):
    """Makes this process one of two. The other is a fork that does no more than meet it."""
    import torch.distributed

    options = {"init_method": f"file://{folder}/meet", "world_size": 2, "timeout": datetime.timedelta(seconds=60)}
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        os.close(writing)
        torch.distributed.init_process_group("gloo", rank=1, **options)
        os.read(reading, 1)
        os._exit(0)
    try:
        torch.distributed.init_process_group("gloo", rank=0, **options)
        yield
    finally:
        torch.distributed.destroy_process_group()
        os.close(reading)
        os.close(writing)
        os.waitpid(pid, 0)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the other process is forked")
def test_several_processes_of_pytorch_are_refused_before_anything_is_done(tmp_path):
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    before = model.get_weights()
    check_synchronized(model)
    with world_of_two(tmp_path):
        says = "Expected a model that 2 PyTorch processes train together.*synchronize"
        with pytest.raises(RuntimeError, match=says):
            check_synchronized(model)
        with pytest.raises(RuntimeError, match=says):
            fit(model, lambda epoch: pytest.fail("no data is asked for"), 1, resume=tmp_path / "run")
        with pytest.raises(RuntimeError, match=says):
            model.fit(np.ones((4, 3)), np.ones((4, 1)), verbose=0, callbacks=[Resume(tmp_path / "run", callbacks=[])])
    assert not (tmp_path / "run").exists()
    for a, b in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)


def test_torchrun_is_seen_before_the_processes_meet(monkeypatch):
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "1")
    monkeypatch.setenv("WORLD_SIZE", "1")
    check_synchronized(model)
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(RuntimeError, match="4 PyTorch processes"):
        check_synchronized(model)
