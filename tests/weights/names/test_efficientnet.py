import pytest

from keras_vit.weights import names
from keras_vit.weights.model import weights_of
from keras_vit.weights.read.file import Entry
from tests.models.test_efficientnet import build

SOURCES = {"timm_efficientnet": "", "efficientnet": "efficientnet-b0/", "keras_applications": ""}


@pytest.fixture(scope="module")
def weights():
    return set(weights_of(build()))


@pytest.mark.parametrize("name", [*SOURCES, "keras"])
def test_each_weight_has_its_own_key_and_is_found_by_it(name, weights):
    source = names.SOURCES[name]
    keys = {weight: source.find(weight).keys for weight in weights}
    assert len({key for own in keys.values() for key in own}) == len(weights)
    for weight, (key,) in keys.items():
        assert source.weight_of(key) == weight and source.layer_of(key) == weight.split("/")[0]


@pytest.mark.parametrize("name", SOURCES)
def test_no_row_is_without_a_weight(name, weights):
    for row in names.SOURCES[name].names:
        assert {row.format(stage=stage, unit=1) for stage in (1, 2)} & weights, row


@pytest.mark.parametrize("name", [*SOURCES, "keras"])
def test_a_source_is_recognised_by_its_keys(name, weights):
    source, prefix = names.SOURCES[name], SOURCES.get(name, "")
    keys = {prefix + key for weight in weights for key in source.find(weight).keys}
    if name == "keras_applications":
        keys = {key.replace("_1_", "a_").replace("_2_", "b_") for key in keys}
    assert names.recognise(dict.fromkeys(keys, Entry((1,), None)), "npz", {}) is source
    if name == "keras":
        assert source.spelled(keys).family == "efficientnet" and source.spelled({"block_00/norm_1/0"}).family is None


def test_official_blocks_are_counted_through_and_told_apart_by_their_shapes():
    def block(number, kernel, width, expands):
        start = f"efficientnet-b1/blocks_{number}/"
        project = f"{start}conv2d_1/kernel" if expands else f"{start}conv2d/kernel"
        arrays = {f"{start}depthwise_conv2d/depthwise_kernel": (kernel, kernel, 6, 1), project: (1, 1, 6, width)}
        return arrays | ({f"{start}conv2d/kernel": (1, 1, 1, 6)} if expands else {})

    # Of 10 or more blocks the names are not in order. The first two have no expansion.
    kinds = [(3, 8, False), (3, 8, False), (3, 8, True), *[(5, 8, True)] * 8, (5, 16, True)]
    shapes = {key: Entry(shape, None) for i, kind in enumerate(kinds) for key, shape in block(i, *kind).items()}
    canonical, ignored = names.SOURCES["efficientnet"].canonical_keys(dict(sorted(shapes.items())))
    kernels = {key.split("/")[1]: name.split("/")[0] for name, key in canonical.items() if "depthwise" in name}
    places = ["0_0", "0_1", "1_0", *[f"2_{i}" for i in range(8)], "3_0"]
    assert kernels == {f"blocks_{i}": f"blocks_{place}" for i, place in enumerate(places)} and not ignored
