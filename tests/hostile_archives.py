"""Makers of small weight files that would need much memory or time, and the reasons for which they are refused."""

import io
import pickletools
import struct
import zipfile

import h5py
import numpy as np

PICKLED = b"\x80\x02"


def archive(path, members, compression=zipfile.ZIP_STORED):
    with zipfile.ZipFile(path, "w", compression) as file:
        for name, data in members.items():
            file.writestr(f"a/{name}", data)


def npz_with_long_header(path):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file, file.open("cls.npy", "w") as member:
        member.write(b"\x93NUMPY\x02\x00" + struct.pack("<I", 2**31))
        member.write(b" " * 10_000_000)


def npz_that_expands(path):
    np.savez_compressed(path, a=np.zeros(40_000_000, "float32"))


def compressed_pickle(path, **more):
    data = PICKLED + b"(" + b"]" * 2**22 + b"t."
    archive(path, {"version": "3\n", "byteorder": "little", **more, "data.pkl": data}, zipfile.ZIP_DEFLATED)


def script_with_compressed_pickle(path):
    compressed_pickle(path, **{"constants.pkl": PICKLED + b")."})


def stored_pickle(data):
    return lambda path: archive(path, {"version": "3\n", "byteorder": "little", "data.pkl": data})


def script(data):
    return lambda path: archive(path, {"constants.pkl": PICKLED + b").", "data.pkl": data})


def listed_often(path):
    """One member of 4 MB is listed 20,000 times."""
    archive(path, {"data.pkl": PICKLED + b"}.", "data/0": bytes(2**22)})
    raw = path.read_bytes()
    end = raw.rindex(b"PK\5\6")
    start = struct.unpack("<I", raw[end + 16 : end + 20])[0]
    entries = raw[start:end]
    entries += entries[entries.index(b"PK\1\2", 4) :] * 20_000
    path.write_bytes(
        raw[:start] + entries + struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 20_002, 20_002, len(entries), start, 0)
    )


def legacy(state):
    """A file of torch's older format with another pickle of the state."""

    def write(path):
        import torch

        torch.save({}, path, _use_new_zipfile_serialization=False)
        data = path.read_bytes()
        stream = io.BytesIO(data)
        for _ in range(3):
            for _ in pickletools.genops(stream):
                pass
        path.write_bytes(data[: stream.tell()] + state + data[stream.tell() :])

    return write


def deep_groups(path):
    with h5py.File(path, "w") as file:
        group = file
        for _ in range(400):
            group = group.create_group("g")
        group["0"] = np.ones(2, "float32")


def long_names(path):
    with h5py.File(path, "w") as file:
        group = file.create_group("a" * 20_000 + "/vars")
        for number in range(500):
            group[str(number)] = np.ones(1, "float32")


def long_attribute(path):
    with h5py.File(path, "w") as file:
        group = file.create_group("layers/dense/vars")
        group["0"] = np.ones(2, "float32")
        group.attrs["name"] = np.array(["a"] * 4000, object)


MEMO = PICKLED + b"]r" + struct.pack("<I", 2**28) + b"."
GROWING = PICKLED + b"cbuiltins\nbytearray\nJ" + struct.pack("<i", 2**31 - 1) + b"\x85R."
ENCODING = PICKLED + b"c_codecs\nencode\nX\x01\0\0\0aX\x03\0\0\0hex\x86R."
# {name: (function that writes the file, a part of the error)}.
FILES = {
    "header.npz": (npz_with_long_header, "damaged"),
    "expands.npz": (npz_that_expands, "its members expand to"),
    "compressed.pth": (compressed_pickle, "is compressed"),
    "compressed.pt": (script_with_compressed_pickle, "is compressed"),
    "memo.pt": (script(MEMO), "memo index 268435456"),
    "memo.pth": (stored_pickle(MEMO), "memo index 268435456"),
    "bytearray.pth": (stored_pickle(GROWING), "builtins.bytearray"),
    "encode.pth": (stored_pickle(ENCODING), "_codecs.encode"),
    "long.pth": (stored_pickle(PICKLED + b"(" + b"]" * 10**6 + b"t."), "do not end within"),
    "older_memo.pth": (legacy(MEMO), "memo index 268435456"),
    "older_long.pth": (legacy(PICKLED + b"(" + b"]" * 10**6 + b"t."), "do not end within"),
    "older_bytearray.pth": (legacy(GROWING), "builtins.bytearray"),
    "listed.pth": (listed_often, "they overlap"),
    "deep.h5": (deep_groups, "nested more than 100 deep"),
    "names.h5": (long_names, "is a long name"),
    "attribute.h5": (long_attribute, "has more than 50 parts"),
}
