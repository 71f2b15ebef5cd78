"""The dtype policy that a model's layers are made with."""

import functools

import keras


def with_dtype(build):
    """Makes a builder's argument `dtype` the policy of the layers that it makes, instead of Keras' global one."""

    @functools.wraps(build)
    def build_in_dtype(*args, **kwargs):
        if kwargs.get("dtype") is None:
            return build(*args, **kwargs)
        before = keras.config.dtype_policy()
        keras.config.set_dtype_policy(kwargs["dtype"])
        try:
            return build(*args, **kwargs)
        finally:
            keras.config.set_dtype_policy(before)

    return build_in_dtype
