import pytest

from keras_vit.models import catalog as names
from keras_vit.weights.read.file import Entry

OTHER_KEYS = [{"stem.conv.weight", "stages.0.blocks.0.mlp.weight"}]
OTHER_KEYS += [{"stem.conv.weight", "stages.0.0.conv1.weight"}, {"resnet.embedder.embedder.convolution.weight"}]
OTHER_KEYS += [{"conv1.weight", "layer1.0.conv1.weight"}, {"encoder.weight", "bias"}]


def test_numbered_modules_of_bit_are_canonical():
    canonical, _ = names.sources()["bit"].canonical_keys(["resnet/block2/unit03/b/standardized_conv2d_14/kernel"])
    assert list(canonical) == ["block2/unit03/b/standardized_conv2d/kernel"]


@pytest.mark.parametrize("keys", OTHER_KEYS)
def test_keys_of_other_models_have_no_source(keys):
    assert names.recognise(keys, "safetensors", {}) is None and names.recognise(keys, "npz", {}) is None
    official = names.sources()["official"]
    assert official.find_weight_path("encoder.weight") is None and official.find("block_00/nothing") is None


def test_official_efficientnet_blocks_are_found_by_shape():
    def block(number, kernel, width, expands):
        start = f"efficientnet-b1/blocks_{number}/"
        project = f"{start}conv2d_1/kernel" if expands else f"{start}conv2d/kernel"
        arrays = {f"{start}depthwise_conv2d/depthwise_kernel": (kernel, kernel, 6, 1), project: (1, 1, 6, width)}
        return arrays | ({f"{start}conv2d/kernel": (1, 1, 1, 6)} if expands else {})

    # With 10 or more blocks, the names are not in numerical order. The first two blocks have no expansion.
    kinds = [(3, 8, False), (3, 8, False), (3, 8, True), *[(5, 8, True)] * 8, (5, 16, True)]
    shapes = {key: Entry(shape, None) for i, kind in enumerate(kinds) for key, shape in block(i, *kind).items()}
    canonical, ignored = names.sources()["efficientnet"].canonical_keys(dict(sorted(shapes.items())))
    kernels = {key.split("/")[1]: name.split("/")[0] for name, key in canonical.items() if "depthwise" in name}
    places = ["0_0", "0_1", "1_0", *[f"2_{i}" for i in range(8)], "3_0"]
    assert kernels == {f"blocks_{i}": f"blocks_{place}" for i, place in enumerate(places)} and not ignored
