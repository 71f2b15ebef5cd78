"""Reads the tensors of TorchScript archives, such as OpenAI's CLIP files, without running their programs."""

import collections
import pickle
import zipfile

# {torch storage class: dtype}.
_DTYPES = {
    "FloatStorage": "float32",
    "HalfStorage": "float16",
    "BFloat16Storage": "bfloat16",
    "DoubleStorage": "float64",
    "LongStorage": "int64",
}
_LISTS = ("build_intlist", "build_boollist", "build_doublelist", "build_tensorlist")


def read_tensors(path):
    """Returns the parameters and buffers of the archive's module by name, as torch tensors."""
    with zipfile.ZipFile(path) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith("/data.pkl"))
        with archive.open(name) as file:
            module = _Unpickler(file, archive, name.removesuffix(".pkl")).load()
        most = archive.getinfo(name).file_size
    return _tensors(module, most)


class _Module:
    """Takes the place of each class in the archive, and only stores the values of its fields."""

    def __setstate__(self, state):
        self.fields = state


class _Unpickler(pickle.Unpickler):
    """Builds tensors, lists and `_Module`s, and nothing else."""

    def __init__(self, file, archive, folder):
        super().__init__(file)
        self._archive, self._folder = archive, folder
        # Read each array once, because a pickle can refer to it many times.
        self._arrays = {}

    def find_class(self, module, name):
        if module.split(".")[0] == "__torch__":
            return _Module
        if module == "torch" and name in _DTYPES:
            return _DTYPES[name]
        known = {("torch._utils", "_rebuild_tensor_v2"): _tensor, ("collections", "OrderedDict"): _empty_dict}
        known |= {("torch.jit._pickle", each): _same for each in _LISTS}
        if (module, name) not in known:
            raise pickle.UnpicklingError(f"it holds {module}.{name}, which is neither a tensor nor a module")
        return known[module, name]

    def persistent_load(self, pid):
        import torch

        _, dtype, key, *_ = pid
        if self._archive.getinfo(f"{self._folder}/{key}").compress_type != zipfile.ZIP_STORED:
            raise pickle.UnpicklingError(f"its array {key!r} is compressed, which could need any amount of memory")
        if key not in self._arrays:
            self._arrays[key] = bytearray(self._archive.read(f"{self._folder}/{key}"))
        data = self._arrays[key]
        return (
            torch.frombuffer(data, dtype=getattr(torch, dtype)) if data else torch.empty(0, dtype=getattr(torch, dtype))
        )


def _tensor(storage, offset, size, stride, *_):
    return storage.as_strided(tuple(size), tuple(stride), offset)


# These functions make no copies, because a pickle could call them many times.
def _empty_dict():
    return collections.OrderedDict()


def _same(values):
    return values


def _tensors(module, most):
    """Returns {name: tensor} of a module and its submodules. Raises after about `most` fields, which may repeat."""
    import torch

    found, left = {}, [("", module)]
    while left:
        prefix, module = left.pop()
        inner = []
        for name, value in (module.fields if isinstance(module, _Module) else {}).items():
            key = prefix + name
            most -= 1 + len(key) // 50
            if most < 0:
                raise pickle.UnpicklingError("its modules have more fields than its pickle has bytes")
            if isinstance(value, torch.Tensor):
                found[key] = value
            elif isinstance(value, _Module):
                inner.append((f"{key}.", value))
        left += reversed(inner)
    return found
