import inspect
from collections.abc import Callable

import keras

from keras_vit.weights.local import local_path

# What weights bring with them, and so overrules a row's own.
OF_THE_WEIGHTS = ("activation", "mean", "std", "interpolation", "crop_fraction")


def named_builder(
    builder: Callable[..., keras.Model], name: str, variant: str, module: str, **defaults
) -> Callable[..., keras.Model]:
    """Makes the builder of one variant: `builder` with the variant set, with a signature and a docstring of its own.

    Args:
        builder: A builder whose first argument is the variant.
        name: String, the name of the new one.
        variant: String, the variant that it builds.
        module: String, `__name__` of the module that binds the name: doctest and pickle look for it there.
        **defaults: The builder's arguments that have other defaults in this variant. Those that describe how weights
            were trained hold where there are none.

    Returns:
        A function of the builder's other arguments.
    """

    def build(**kwargs):
        own = defaults
        if kwargs.get("weights") is not None:
            kwargs["weights"] = local_path(kwargs["weights"], name)
            own = {key: value for key, value in defaults.items() if key not in OF_THE_WEIGHTS}
        return builder(variant, **{**own, **kwargs})

    signature = inspect.signature(builder)
    build.__signature__ = signature.replace(
        parameters=[
            parameter.replace(default=defaults[key]) if key in defaults else parameter
            for key, parameter in signature.parameters.items()
            if key != "variant"
        ]
    )
    build.__name__ = build.__qualname__ = name
    build.__module__ = module
    settings = "".join(f", {key}={value!r}" for key, value in defaults.items())
    build.__doc__ = (
        f'Builds a {builder.__name__}-{variant}: `keras_vit.{builder.__name__}("{variant}"{settings}, ...)`, which '
        f"explains the arguments.\n\nExample:\n\n>>> model = keras_vit.{name}(num_classes=10)"
    )
    return build
