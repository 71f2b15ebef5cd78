import keras

from keras_vit.models import forward

# Compiling ViT-B/16 takes about as much time as it saves in 200 steps.
FEWEST_STEPS = 200


def compile_forward(model):
    """Compiles the forward pass of a model on PyTorch, as `model.compile(jit_compile=True)` does for keras_vit models.

    Use it for a model that contains a model of this package, for example with your own head. Keras' `jit_compile=True`
    would compile its whole train step, which takes many minutes. The first batch of training, and of evaluation, takes
    longer. `model.compile(jit_compile=False)` makes a model of this package eager again.

    Args:
        model: A built `keras.Model`; if it has no layers of this package, a ValueError is raised.

    Raises:
        RuntimeError: If the backend is not PyTorch, or PyTorch cannot compile on this machine.

    Example:

    >>> vit = keras_vit.ViT("Ti/16", image_size=32, num_layers=1, num_classes=0)
    >>> model = keras.Sequential([keras.Input((32, 32, 3)), vit, keras.layers.Dense(2)])
    >>> model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    >>> if keras.backend.backend() == "torch":
    ...     compile_forward(model)
    """
    if keras.backend.backend() != "torch":
        problem = f"Expected the PyTorch backend. Received: {keras.backend.backend()}"
        raise RuntimeError(f"{problem}. Its argument is model.compile(jit_compile=True)")
    forward.set_compiled(model)


def compile_long_run(model, num_steps, verbose=1):
    """Compiles the forward pass for a long run on a GPU with PyTorch; prints one line if that is impossible."""
    if keras.backend.backend() != "torch" or num_steps <= FEWEST_STEPS:
        return
    if model.variables[0].value.device.type == "cpu":
        return
    if reason := forward.why_not(model):
        if verbose:
            print(f"The model trains without compilation: {reason}. {forward.REMEDY}.")
        return
    compile_forward(model)
