"""Responds to requests with a SavedModel through TensorFlow's session, without the checks of TensorFlow's Python API.

    python session.py FOLDER < requests > responses

Each request on stdin is pickled: ({input tensor: array}, [output tensor]). Each response on stdout is a pickled list of
arrays, or the text of an error.
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
    with tf.Graph().as_default() as graph, tf.compat.v1.Session() as session:
        tf.compat.v1.saved_model.load(session, ["serve"], sys.argv[1])
        while True:
            try:
                request, names = pickle.load(sys.stdin.buffer)
            except EOFError:
                return
            tensors = [graph.get_tensor_by_name(name)._as_tf_output() for name in (*request, *names)]
            inputs = dict(zip(tensors, request.values(), strict=False))
            try:
                response = session._call_tf_sessionrun(None, inputs, tensors[len(request) :], [], None)
            except (tf.errors.OpError, ValueError, TypeError) as error:
                response = str(error)
            pickle.dump(response, responses)
            responses.flush()


if __name__ == "__main__":
    main()
