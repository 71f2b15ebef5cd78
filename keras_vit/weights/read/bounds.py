"""Bounds the memory that an archive or a pickle can need, by the size of its file, before it is read."""

import contextlib
import io
import os
import pickletools
import zipfile

from keras_vit.weights.read.file import refuse, refusing_damage

# An archive may expand to FACTOR x its size + SPARE bytes. Trained arrays compress to about half of their size.
FACTOR, SPARE = 5, 16_000_000
# A pickle needs up to 225 bytes of memory for each of its bytes, and about 200 bytes for each tensor.
PICKLE_SHARE, PICKLE_SPARE = 16, 256_000
# Functions of torch's list of safe functions that can double their result with each call.
_GROWING = ("bytearray", "encode")


@contextlib.contextmanager
def open_archive(path):
    """Yields a zipfile.ZipFile whose members fit into the file and do not expand too much; errors name the file."""
    with refusing_damage(path), zipfile.ZipFile(path) as archive:
        size, members = os.path.getsize(path), archive.infolist()
        packed, expanded = (sum(getattr(info, name) for info in members) for name in ("compress_size", "file_size"))
        if packed > size:
            raise refuse(path, f"its members have {packed} bytes, more than the file, so they overlap")
        if expanded > FACTOR * size + SPARE:
            raise refuse(path, f"its members expand to {expanded} bytes, and the file has {size}")
        yield archive


def check_pickles(path, file, count=1):
    """Raises if the next `count` pickles in an open file could need far more memory than the file has bytes."""
    most = os.path.getsize(path) // PICKLE_SHARE + PICKLE_SPARE
    file = io.BytesIO(file.read(most))
    with refusing_damage(path, f"its pickles do not end within {most} bytes, or are damaged"):
        for _ in range(count):
            for opcode, value, place in pickletools.genops(file):
                # The memory grows to the largest index, and pickles count the indices from 0.
                if opcode.name in ("PUT", "BINPUT", "LONG_BINPUT") and int(value) > place:
                    raise refuse(path, f"its pickle has the memo index {value} at byte {place}")
                if opcode.name == "GLOBAL" and value.split(" ")[-1] in _GROWING:
                    raise refuse(path, f"its pickle calls {value.replace(' ', '.')}, which could need any memory")
