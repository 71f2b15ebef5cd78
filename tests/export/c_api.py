"""Answers requests with a SavedModel through TensorFlow's C API, as a server does: without Python's checks before it.

    python c_api.py FOLDER < requests > answers

The request on stdin is pickled: ({input's tensor: array}, [output's tensor]). So is the answer on stdout: a list of
arrays, or the text of the error. TensorFlow's Python is not imported.
"""

import ctypes
import importlib.util
import os
import pickle
import sys

import numpy as np

DTYPES = {1: "float32", 2: "float64", 3: "int32", 4: "uint8", 7: "object", 9: "int64"}
NUMBERS = {name: number for number, name in DTYPES.items()}
P = ctypes.c_void_p


class Output(ctypes.Structure):
    """TF_Output: one of an operation's results."""

    _fields_ = [("operation", P), ("index", ctypes.c_int)]


class String(ctypes.Structure):
    """TF_TString, which holds up to 22 bytes itself."""

    _fields_ = [("bytes", ctypes.c_ubyte * 24)]


def library():
    folder = importlib.util.find_spec("tensorflow").submodule_search_locations[0]
    # The other library takes its symbols from this one.
    framework = ctypes.CDLL(os.path.join(folder, "libtensorflow_framework.so.2"), mode=ctypes.RTLD_GLOBAL)
    return ctypes.CDLL(os.path.join(folder, "libtensorflow_cc.so.2"), mode=ctypes.RTLD_GLOBAL), framework


class Session:
    """A SavedModel, loaded with the tag that servers take."""

    def __init__(self, folder):
        self.libraries = library()
        self.status = self.call("TF_NewStatus", P)
        self.graph = self.call("TF_NewGraph", P)
        options = self.call("TF_NewSessionOptions", P)
        tags = (ctypes.c_char_p * 1)(b"serve")
        self.session = self.call(
            "TF_LoadSessionFromSavedModel", P, P(options), None, folder.encode(), tags, 1, P(self.graph), None,
            P(self.status),
        )  # fmt: skip
        self.check()

    def call(self, name, result, *arguments):
        for loaded in self.libraries:
            if hasattr(loaded, name):
                function = getattr(loaded, name)
                function.restype = result
                return function(*arguments)
        raise AttributeError(name)

    def check(self):
        if self.call("TF_GetCode", ctypes.c_int, P(self.status)):
            raise ValueError(self.call("TF_Message", ctypes.c_char_p, P(self.status)).decode(errors="replace"))

    def output(self, tensor):
        name, _, index = tensor.partition(":")
        return Output(self.call("TF_GraphOperationByName", P, P(self.graph), name.encode()), int(index))

    def tensor(self, array):
        dims = (ctypes.c_int64 * array.ndim)(*array.shape)
        size = array.size * (24 if array.dtype == object else array.itemsize)
        number = NUMBERS[array.dtype.name]
        tensor = self.call("TF_AllocateTensor", P, number, dims, array.ndim, ctypes.c_size_t(size))
        data = self.call("TF_TensorData", P, P(tensor))
        if array.dtype != object:
            ctypes.memmove(data, np.ascontiguousarray(array).ctypes.data, size)
            return tensor
        for string, value in zip((String * array.size).from_address(data or 1), array.flat, strict=True):
            self.call("TF_StringInit", None, ctypes.byref(string))
            self.call("TF_StringCopy", None, ctypes.byref(string), value, ctypes.c_size_t(len(value)))
        return tensor

    def array(self, tensor):
        rank = self.call("TF_NumDims", ctypes.c_int, P(tensor))
        shape = [self.call("TF_Dim", ctypes.c_int64, P(tensor), i) for i in range(rank)]
        dtype = DTYPES[self.call("TF_TensorType", ctypes.c_int, P(tensor))]
        data = self.call("TF_TensorData", P, P(tensor))
        if dtype != "object":
            size = self.call("TF_TensorByteSize", ctypes.c_size_t, P(tensor))
            return np.frombuffer(ctypes.string_at(data, size), dtype).reshape(shape).copy()
        values = []
        for string in (String * int(np.prod(shape))).from_address(data):
            size = self.call("TF_StringGetSize", ctypes.c_size_t, ctypes.byref(string))
            start = self.call("TF_StringGetDataPointer", P, ctypes.byref(string))
            values.append(ctypes.string_at(start, size))
        return np.array(values, object).reshape(shape)

    def run(self, inputs, outputs):
        names = (Output * len(inputs))(*map(self.output, inputs))
        values = (P * len(inputs))(*map(self.tensor, inputs.values()))
        wanted = (Output * len(outputs))(*map(self.output, outputs))
        results = (P * len(outputs))()
        self.call(
            "TF_SessionRun", None, P(self.session), None, names, values, len(inputs), wanted, results, len(outputs),
            None, 0, None, P(self.status),
        )  # fmt: skip
        try:
            self.check()
            return [self.array(tensor) for tensor in results]
        finally:
            for tensor in (*values, *results):
                self.call("TF_DeleteTensor", None, P(tensor))


def main():
    # What the libraries print must not come between the answers.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    session = Session(sys.argv[1])
    while True:
        try:
            inputs, outputs = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        try:
            answer = session.run(inputs, outputs)
        except ValueError as error:
            answer = str(error)
        pickle.dump(answer, answers)
        answers.flush()


if __name__ == "__main__":
    main()
