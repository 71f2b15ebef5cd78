"""Reads .weights.h5 files of Keras 3, and files of keras.applications in the older layout."""

import math
import re

import ml_dtypes

from keras_vit.weights.read.file import Entry, WeightsFile, refuse, refusing_damage

# Every EfficientNet of keras.applications has these layers. A file of Keras 2 with these layers is accepted.
_FLAT = {"stem_conv", "block1a_dwconv"}
# Keys without weights: states of optimizers and random generators, and image counts of Normalization layers.
_NO_ARRAYS = r"^optimizer/|(^|/)seed_generator(_\d+)?/|(^|/)normalization(_\d+)?/(vars/2|.*count(:0)?)$"
# The largest allowed nesting depth, length of a name, and number of names in an attribute. A file that exceeds one of
# these limits is damaged.
_DEEPEST, _LONGEST, _MOST_NAMES = 100, 2_000, 50


class H5File(WeightsFile):
    """A .weights.h5 file of Keras 3. A key joins layer names and a variable's number: "block_00/attention/qkv/0"."""

    # The format has no checksums, so `verified` stays False if no hash is known. Some damage makes HDF5 hang or crash.
    container = "h5"

    def __init__(self, path):
        import h5py

        super().__init__(path)
        self._places = {}
        with refusing_damage(self.path), self._open() as file:
            older = self._older_keys(file) if set(file) >= _FLAT else None
            if older is None and ("layer_names" in file.attrs or "model_weights" in file):
                raise refuse(
                    self.path,
                    "it has the legacy HDF5 layout of Keras 2; load it with Keras 2 or tf_keras, and "
                    "save the weights from Keras 3",
                )
            for name, link in self._links(file):
                if not isinstance(link, h5py.HardLink):
                    # Soft and external links could lead anywhere, even to another file.
                    raise refuse(self.path, f"{name!r} is a link, which Keras never writes")
                self._add(name, file[name], older)
        if not self.entries:
            raise refuse(self.path, "it holds no arrays in the layout of Keras 3")

    def _open(self):
        import h5py

        return h5py.File(self.path, "r")

    def _older_keys(self, file):
        """Returns {path in the file: key} for the layout of Keras 2, in which layers list the names of their arrays."""
        listed = {layer: self._attribute(group, "weight_names", ()) for layer, group in file.items()}
        return {
            f"{layer}/{name.decode() if isinstance(name, bytes) else name}": f"{layer}/{number}"
            for layer, names in listed.items()
            for number, name in enumerate(names)
        }

    def _links(self, file):
        links = []
        # `visititems_links` hides errors of the function below, and stops when this function returns a value. So return
        # the name of a bad link, and raise the error afterwards.
        bad = file.visititems_links(lambda name, link: name if _is_long(name) else links.append((name, link)))
        if bad is not None:
            raise self._long_name(bad)
        return links

    def _add(self, name, item, older):
        import h5py

        if h5py.h5o.get_info(item.id).rc != 1:
            raise refuse(self.path, f"{name!r} is also stored under another name")
        if re.search(r"(^|/)rotary_embedding$", name):
            # The rotary layer has no arrays, so only the layer's name shows that the model has it.
            self.facts["rotary"] = True
        if isinstance(item, h5py.Group) or re.search(_NO_ARRAYS, name):
            return
        if not isinstance(item, h5py.Dataset):
            raise refuse(self.path, f"{name!r} is no array")
        *layers, group, number = f"/{name}".split("/")
        if name not in older if older is not None else group != "vars":
            raise refuse(self.path, f"{name!r} is in a place where Keras writes no arrays")
        key = "/".join((*self._names(item.file, layers[1:]), number)) if older is None else older[name]
        dtype, shape = item.dtype, item.shape
        if self._attribute(item, "dtype", None) == "bfloat16" and dtype == "V2":
            dtype = "bfloat16"
        elif dtype.kind != "f":
            raise refuse(self.path, f"{key!r} is of dtype {dtype}, expected floats")
        plan = item.id.get_create_plist()
        # Virtual and external arrays read other files. Compressed or unwritten arrays can expand to any size.
        if plan.get_layout() not in (h5py.h5d.CONTIGUOUS, h5py.h5d.COMPACT) or plan.get_external_count():
            raise refuse(self.path, f"{key!r} is virtual, external, chunked or compressed, which Keras never writes")
        size = item.id.get_storage_size()
        if shape is None or size != math.prod(shape) * item.dtype.itemsize:
            raise refuse(self.path, f"{key!r} of shape {shape} does not match its {size} bytes")
        if key in self.entries:
            raise refuse(self.path, f"it holds {key!r} twice")
        if _is_long(key):
            raise self._long_name(key)
        self.entries[key] = Entry(tuple(shape), dtype)
        self._places[key] = item.name

    def _long_name(self, name):
        return refuse(self.path, f"{name[:40]!r}... is a long name, or nested more than {_DEEPEST} deep")

    def _attribute(self, item, name, default):
        """Returns an attribute. Raises an error if it has too many elements.

        All elements may refer to one long text in the file, and each would be read as a copy.
        """
        if name in item.attrs and math.prod(item.attrs.get_id(name).shape) > _MOST_NAMES:
            raise refuse(self.path, f"the attribute {name!r} of {item.name!r} has more than {_MOST_NAMES} parts")
        return item.attrs.get(name, default)

    def _names(self, file, folders):
        """Yields the names of the layers around an array. `folders` is the array's path in the file.

        Leaves out the name of the model, because users may choose any name.
        """
        for depth in range(1, len(folders) + 1):
            variables = file.get("/".join((*folders[:depth], "vars")))
            if variables is not None:
                yield str(self._attribute(variables, "name", folders[depth - 1]))

    def _read(self, file, key):
        array = file[self._places[key]][()]
        return array.view(ml_dtypes.bfloat16) if self.entries[key].dtype == "bfloat16" else array


def _is_long(name):
    return name.count("/") > _DEEPEST or len(name) > _LONGEST
