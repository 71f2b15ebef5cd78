import dataclasses


@dataclasses.dataclass(frozen=True)
class Source:
    """Where a pipeline's images come from.

    Args:
        records: tf.data.Dataset of {"name": string, "image": string, "label": ..., "weight": float}, always in the same
            order. Without "label" the pipeline gives images alone; "weight" is a sample's weight and may be missing.
        num_images: Integer, how many records there are.
        files: Bool, whether "image" is a path; the bytes of an image otherwise.
        labels: "int", for classes counted from 0; "multi_hot", for a 0 or 1 for each class; "float", for numbers to
            predict; None for no labels.
        class_names: The names of the classes in order; empty where they have none.
        num_classes: Integer, or how many numbers "float" has.
        arrays: Bool, whether there are `.npy` files among them.
    """

    records: object
    num_images: int
    files: bool
    labels: str | None
    class_names: tuple[str, ...]
    num_classes: int
    arrays: bool = False

    def __post_init__(self):
        names = [str(name) for name in self.class_names]
        if not names and self.labels in ("int", "multi_hot"):
            names = [str(i) for i in range(self.num_classes)]
        object.__setattr__(self, "class_names", tuple(names))


def tensorflow():
    """TensorFlow, whose tf.data makes the batches on each backend; an ImportError says what brings it."""
    try:
        import tensorflow
    except ModuleNotFoundError as error:
        raise ImportError(
            '`keras_vit.data` needs TensorFlow, for tf.data, on every backend: pip install "keras-vit[data]"'
        ) from error
    return tensorflow
