import keras
import pytest

import keras_vit
from keras_vit.training.decay_groups import decay_groups, is_decayed
from tests import tiny

HYBRID = {"image_size": 32, "stages": (1,), "width_factor": 0.5, "patch_size": 2, "num_layers": 1}
MODELS = {
    "vit": lambda: tiny.build(representation_size=7, layer_scale_init=0.1, num_registers=2),
    "hybrid": lambda: keras_vit.ViT("R50+B/16", hidden_dim=12, num_heads=3, mlp_dim=20, num_classes=5, **HYBRID),
    "bit": lambda: keras_vit.BiT("R50x1", stages=(1, 1), width_factor=0.5, image_size=32, num_classes=5),
    "distilled": lambda: tiny.build(distillation_token=True),
    "map": lambda: tiny.build(pooling="map"),
    "learned2d": lambda: tiny.build(position_embedding="learned2d"),
    "relative": lambda: tiny.build(position_embedding="relative"),
    "qk_norm": lambda: tiny.build(qk_norm=True, norm_after_pooling=True),
}
# Every name that a weight that is no kernel has, written out.
KEPT = {"bias", "gamma", "beta", "tokens", "probe", "embeddings", "row_embeddings", "column_embeddings"}
KEPT |= {"relative_embeddings", "prefix_embeddings"}


@pytest.mark.parametrize("name", MODELS)
def test_groups_partition_the_variables(name):
    model = MODELS[name]()
    decayed, kept = decay_groups(model)
    ids = [id(v) for v in decayed + kept]
    assert len(set(ids)) == len(ids)
    assert set(ids) == {id(v) for v in model.trainable_variables}
    assert {v.path.split("/")[-1] for v in decayed} == {"kernel"}
    assert {v.path.split("/")[-1] for v in kept} <= KEPT
    # A vector is never decayed, and a matrix always but for those named above.
    assert all(len(v.shape) > 1 for v in decayed)


def test_every_kind_of_weight_was_seen():
    names = {v.path.split("/")[-1] for build in MODELS.values() for v in decay_groups(build())[1]}
    assert names == KEPT


def test_frozen_weights_are_in_neither_group():
    model = tiny.build()
    model.get_layer("block_00").trainable = False
    decayed, kept = decay_groups(model)
    assert not any(v.path.startswith("block_00/") for v in decayed + kept)
    assert len(decayed + kept) == len(model.trainable_variables)


def test_kernels_of_other_layers():
    layer = keras.layers.SeparableConv2D(2, 3)
    layer.build((None, 8, 8, 3))
    decayed, kept = decay_groups(layer)
    assert len(decayed) == 2 and len(kept) == 1
    assert not is_decayed("kernels/bias") and is_decayed("kernel")
