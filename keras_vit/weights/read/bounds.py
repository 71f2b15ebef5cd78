"""Refuses to read archives and pickles that would need far more memory than their file has bytes."""

import contextlib
import io
import os
import pickletools
import zipfile

from keras_vit.weights.read.file import refuse, refusing_damage

# An archive may expand to FACTOR x its size + SPARE bytes. Real weights expand to about twice their compressed size.
FACTOR, SPARE = 5, 16_000_000
# A pickle in a file of n bytes may have n / PICKLE_SHARE + PICKLE_SPARE bytes. Reading a pickle can take 225 times its
# size in memory. The pickle of a real file has about 200 bytes for each tensor.
PICKLE_SHARE, PICKLE_SPARE = 16, 256_000
# torch allows these functions in pickles, but each call of them can double the size of the result.
_GROWING = ("bytearray", "encode")


@contextlib.contextmanager
def open_archive(path):
    """Opens a zip archive as a zipfile.ZipFile. Raises an error if its members overlap or expand to too many bytes."""
    with refusing_damage(path), zipfile.ZipFile(path) as archive:
        size, members = os.path.getsize(path), archive.infolist()
        packed, expanded = (sum(getattr(info, name) for info in members) for name in ("compress_size", "file_size"))
        if packed > size:
            raise refuse(path, f"its members have {packed} bytes, more than the file, so they overlap")
        if expanded > FACTOR * size + SPARE:
            raise refuse(path, f"its members expand to {expanded} bytes, which is too much for a file of {size} bytes")
        yield archive


def check_pickles(path, file, count=1):
    """Raises an error if the next `count` pickles of an open file could need far more memory than the file's size."""
    most = os.path.getsize(path) // PICKLE_SHARE + PICKLE_SPARE
    file = io.BytesIO(file.read(most))
    with refusing_damage(path, f"its pickles do not end within {most} bytes, or are damaged"):
        for _ in range(count):
            for opcode, value, place in pickletools.genops(file):
                # Valid pickles number their memo entries from 0, so an index cannot exceed its byte position in the
                # pickle. A damaged index could require a memo of any length.
                if opcode.name in ("PUT", "BINPUT", "LONG_BINPUT") and int(value) > place:
                    raise refuse(path, f"its pickle has the memo index {value}, which is too large at byte {place}")
                if opcode.name == "GLOBAL" and value.split(" ")[-1] in _GROWING:
                    why = "which could need any amount of memory. NumPy arrays and NumPy numbers need such calls"
                    raise refuse(path, f"its pickle calls {value.replace(' ', '.')}, {why}. Save only the state dict")
