"""Responds to requests with a SavedModel through TensorFlow's runtime, without the checks of TensorFlow's Python API.

    python session.py FOLDER < requests > responses

Each request on stdin is pickled: (signature name, {input name: array}). Each response on stdout is a pickled
{output name: array}, or the text of an error.
"""

import os
import pickle
import sys


def main():
    # A server has neither Keras nor this package.
    sys.modules.update(keras=None, keras_vit=None)
    import tensorflow as tf

    # TensorFlow must not print between the responses.
    responses = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    signatures = tf.saved_model.load(sys.argv[1]).signatures
    while True:
        try:
            name, inputs = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        function = signatures[name]
        try:
            # The op, unlike the function, neither casts nor checks its arguments in Python.
            outputs = tf.raw_ops.StatefulPartitionedCall(
                args=[tf.constant(inputs[key]) for key in sorted(inputs)] + function.captured_inputs,
                Tout=[output.dtype for output in function.outputs],
                f=function,
            )
            keys = sorted(function.structured_outputs)
            response = {key: output.numpy() for key, output in zip(keys, outputs, strict=True)}
        except (tf.errors.OpError, ValueError, TypeError) as error:
            response = str(error)
        pickle.dump(response, responses)
        responses.flush()


if __name__ == "__main__":
    main()
