"""The .weights.h5 files of Keras 3."""

import math
import re

import numpy as np

from keras_vit.weights.read.file import Entry, WeightsFile, check_is_file, refuse, refusing_damage


class H5File(WeightsFile):
    """What `model.save_weights("NAME.weights.h5")` writes, keyed by the layers' names.

    Keras keeps the variables of a layer by number in a group "vars", which carries the layer's name. The keys are the
    names of the layers from the outside in, and the number: "block_00/attention/qkv/0". An optimizer's state and the
    states of random generators are left out.

    Args:
        path: Path of the file. The format has no checksums, and some damage makes the HDF5 library itself hang or
            crash: keep a .sha256 file beside it.

    Attributes:
        entries: Dict from the keys to their Entry.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If the file is damaged, is of another layout, holds anything but float arrays, or points to other
            files.
    """

    container = "h5"
    # For a damaged dtype or name.
    damage = (TypeError, LookupError)

    def __init__(self, path):
        super().__init__(path)
        check_is_file(self.path)
        self._places = {}
        with refusing_damage(self.path, also=self.damage), self._open() as file:
            if "layer_names" in file.attrs or "model_weights" in file:
                raise refuse(
                    self.path,
                    "it has the layout of Keras 2, which names no variables; load it with Keras 2 or tf_keras, and "
                    "save the weights from Keras 3",
                )
            self._add_group(file, ())
        if not self.entries:
            raise refuse(self.path, "it holds no arrays in the layout of Keras 3")

    def _open(self):
        import h5py

        return h5py.File(self.path, "r")

    def _add_group(self, group, names):
        import h5py

        members = self._members(group)
        variables = members.pop("vars", None)
        if variables is not None:
            # The model's own name is left out: it is the same weights under any other.
            if group.name != "/":
                names = (*names, str(variables.attrs.get("name", group.name.rpartition("/")[2])))
            for number, dataset in self._members(variables).items():
                self._add("/".join((*names, number)), dataset)
        for name, member in members.items():
            if (group.name == "/" and name == "optimizer") or re.fullmatch(r"seed_generator(_\d+)?", name):
                continue
            if not isinstance(member, h5py.Group):
                raise refuse(self.path, f"{member.name!r} lies where Keras 3 keeps no arrays")
            self._add_group(member, names)

    def _members(self, group):
        """Returns {name: object}. No link is followed, since it may lead into another file or in a circle."""
        import h5py

        if not isinstance(group, h5py.Group):
            raise refuse(self.path, f"{group.name!r} is no group")
        members = {}
        for name in sorted(group, key=lambda name: (len(name), name)):
            if not isinstance(group.get(name, getlink=True), h5py.HardLink):
                raise refuse(self.path, f"{group.name}/{name} is a link, which Keras never writes")
            members[name] = group[name]
            if h5py.h5o.get_info(members[name].id).rc != 1:
                raise refuse(self.path, f"{group.name}/{name} is there under several names")
        return members

    def _add(self, key, dataset):
        import h5py

        if not isinstance(dataset, h5py.Dataset):
            raise refuse(self.path, f"{dataset.name!r} is no array")
        dtype, shape = dataset.dtype, dataset.shape
        if dataset.attrs.get("dtype") == "bfloat16" and dtype == "V2":
            dtype = "bfloat16"
        elif dtype.kind != "f":
            raise refuse(self.path, f"{key!r} is of dtype {dtype}, expected floats")
        plan = dataset.id.get_create_plist()
        # Virtual and external arrays lie in other files, and compressed or unwritten ones can be of any size.
        if plan.get_layout() not in (h5py.h5d.CONTIGUOUS, h5py.h5d.COMPACT) or plan.get_external_count():
            raise refuse(self.path, f"{key!r} is virtual, external, chunked or compressed, which Keras never writes")
        if shape is None or dataset.id.get_storage_size() != math.prod(shape) * dataset.dtype.itemsize:
            raise refuse(
                self.path, f"{key!r} of shape {shape} does not match its {dataset.id.get_storage_size()} bytes"
            )
        if key in self.entries:
            raise refuse(self.path, f"it holds {key!r} twice")
        self.entries[key] = Entry(tuple(shape), dtype)
        self._places[key] = dataset.name

    def _read(self, file, key):
        entry, dataset = self.entries[key], file[self._places[key]]
        if entry.dtype == "bfloat16":
            array = dataset[()].view("<u2").astype("uint32")
            array <<= 16
            return array.view("float32")
        array = np.empty(entry.shape, "float32")
        if array.size:
            dataset.read_direct(array)
        return array
