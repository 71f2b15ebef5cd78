from collections import Counter

import pytest
import tensorflow as tf

from keras_vit.data import VTAB


def test_vtab_has_19_tasks_in_three_groups():
    assert Counter(task.group for task in VTAB.values()) == {"natural": 7, "specialized": 4, "structured": 8}


@pytest.mark.parametrize(
    "name, counts, validation, test",
    [
        ("dtd", {}, "validation[:200]", "test"),
        ("svhn_cropped", {"train": 73257}, "train[65931:66131]", "test"),
        ("resisc45", {"train": 31500}, "train[18900:19100]", "train[25200:]"),
        ("clevr_count", {"train": 70000}, "train[63000:63200]", "validation"),
        ("dsprites_location", {"train": 737280}, "train[589824:590024]", "train[663552:]"),
        ("smallnorb_azimuth", {}, "test[:200]", "test[50%:]"),
    ],
)
def test_vtab_splits_match_task_adaptation(name, counts, validation, test):
    task = VTAB[name]
    found = [task.split(split, counts) for split in ("train800", "val200", "train800val200", "test")]
    assert found == ["train[:800]", validation, f"train[:800]+{validation}", test]
    with pytest.raises(ValueError, match="one of .*'train800'.* Received: 'train'"):
        VTAB["dtd"].split("train", {})


def test_vtab_labels_computed_from_features():
    def clevr(depths):
        return {
            "objects": {"size": tf.zeros(len(depths)), "pixel_coords": tf.constant([[0.0, 0.0, d] for d in depths])}
        }

    assert int(VTAB["clevr_count"].label(clevr([9.0] * 10))) == 7
    distances = [VTAB["clevr_closest"].label(clevr([99.0, d, 50.0])) for d in (3.0, 8.2, 8.6, 9.3, 9.7, 11.0)]
    assert [int(d) for d in distances] == [0, 1, 2, 3, 4, 5]

    def kitti(kinds, depths):
        return {"objects": {"type": tf.constant(kinds), "location": tf.constant([[0.0, 0.0, d] for d in depths])}}

    # Pedestrians, of type 3, are ignored.
    found = [([3, 0], [1.0, 7.0]), ([1, 2], [30.0, 12.0]), ([2], [25.0]), ([3, 7], [5.0, 6.0])]
    assert [int(VTAB["kitti"].label(kitti(*pair))) for pair in found] == [0, 1, 2, 3]
    location = VTAB["dsprites_location"].label
    assert [int(location({"label_x_position": tf.constant(v, tf.int64)})) for v in (0, 1, 2, 31)] == [0, 0, 1, 15]
    orientation = VTAB["dsprites_orientation"].label
    assert [int(orientation({"label_orientation": tf.constant(v, tf.int64)})) for v in (2, 3, 5, 39)] == [0, 1, 2, 15]
