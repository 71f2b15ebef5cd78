import numpy as np
import pytest
from keras import ops

from keras_vit.models.bit.bottleneck import Bottleneck


@pytest.mark.parametrize("pre_activation", [False, True])
def test_initial_weights(pre_activation):
    layer = Bottleneck(64, 2, pre_activation)
    layer.build((None, 8, 8, 128))
    w = {weight.path.split("/", 1)[1]: ops.convert_to_numpy(weight) for weight in layer.weights}
    for path, fan_in in {"conv_1": 128, "conv_2": 9 * 64, "conv_3": 64, "conv_proj": 128}.items():
        assert w[f"{path}/kernel"].std() == pytest.approx(1 / np.sqrt(fan_in), rel=0.03)
    assert not any(value.any() for path, value in w.items() if path.endswith("beta"))
    gammas = {path: set(value.tolist()) for path, value in w.items() if path.endswith("gamma")}
    # As in the official code, a hybrid's unit adds nothing to its shortcut at first.
    assert gammas.pop("norm_3/gamma") == ({1} if pre_activation else {0})
    assert all(values == {1} for values in gammas.values())
