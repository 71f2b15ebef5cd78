"""The code that all model families share: the model class, and the functions that make a model from arguments."""

import contextlib
import dataclasses
import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ParamSpec

import keras

from keras_vit import arguments, layers
from keras_vit.config import ModelConfig, Preprocessing, config_of, preprocessing_record
from keras_vit.layers import initializers
from keras_vit.models import forward, graph, losses
from keras_vit.models.running import CheckedRuns


@keras.saving.register_keras_serializable(package="keras_vit")
class FamilyModel(CheckedRuns, keras.Model):
    """A functional `keras.Model` built by this package, such as by `keras_vit.ViT`.

    If the heads of a ViT read only the class token or the distillation token, the last block computes only these
    tokens. In a model of 12 blocks, this saves 1/16 of the work. A PyTorch hook on the last block then gets only these
    tokens. So does an activity regularizer that is set after the model was built. A new model of the same layers, such
    as `keras.Model(model.input, model.blocks[-1].output)`, computes all tokens.

    Example:

    >>> model = keras_vit.ViTB16(num_classes=10)
    >>> model.config.num_heads, model.config.grid, len(model.blocks)
    (12, (14, 14), 12)
    """

    # A model with the same layers, in which the last block computes only the tokens that the heads read. None if the
    # last block must compute all tokens.
    _short = None

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        # Avoid plain assignment, because Keras would track the assigned model as a layer.
        vars(self)["_short"] = graph.reading_leading_tokens(self)
        # `compile` uses this policy to enable loss scaling; Keras does not save it for functional models.
        if any(layer.dtype_policy.name == "mixed_float16" for layer in self.layers):
            self.dtype_policy = "mixed_float16"

    @classmethod
    def from_config(cls, config, custom_objects=None):
        layers = {layer["name"]: layer["config"] for layer in config.get("layers", ())}
        fields = layers.get("normalization", {}).get("config")
        if fields and fields.get("family") == "vit" and "token_merging" not in fields:
            # In files of keras_vit 0.2, only the configs of the blocks contain the numbers of merged patches. Copy
            # these numbers to the model's config.
            blocks = [layers.get(f"block_{i:02d}", {}) for i in range(fields["num_layers"])]
            fields["token_merging"] = [block.get("token_merging", 0) for block in blocks]
        return super().from_config(config, custom_objects)

    def __setattr__(self, name, value):
        # Raise an error, because Keras would track the assigned layer although the model does not use it.
        own = getattr(type(self), name, None)
        if isinstance(own, property) and own.fset is None:
            raise AttributeError(
                f"Cannot set `{name}` of model {self.name!r}, because it follows from the layers. Build a new model, "
                'as in keras.Model(model.input, keras.layers.Dense(7)(model.get_layer("pre_logits").output)).'
            )
        super().__setattr__(name, value)

    def call(self, inputs, training=None, mask=None):
        # Symbolic calls must record the original graph.
        is_symbolic = any(isinstance(x, keras.KerasTensor) for x in keras.tree.flatten(inputs))
        if self._short is None or is_symbolic:
            return super().call(inputs, training=training, mask=mask)
        return self._short.call(inputs, training=training, mask=mask)

    def compile(self, *args, jit_compile="auto", **kwargs):
        """Configures training; on PyTorch, `jit_compile=True` compiles the forward pass, and "auto" compiles nothing.

        Raises:
            ValueError: If the loss expects probabilities and the head outputs logits, or the reverse.
        """
        losses.check_loss(self, args, kwargs)
        self._configure(*args, jit_compile=jit_compile, **kwargs)

    def _configure(self, *args, jit_compile="auto", **kwargs):
        super().compile(*args, jit_compile=jit_compile, **kwargs)
        self._given_jit_compile = jit_compile
        forward.follow_jit_compile(self, jit_compile)

    def get_compile_config(self):
        # Keras would save True or False in place of "auto". Another backend would then not use its own default.
        config = super().get_compile_config()
        return config and {**config, "jit_compile": self._given_jit_compile}

    def compile_from_config(self, config):
        """Compiles a loaded model with its saved settings.

        The method of Keras ignores these settings if a class overrides `compile`.
        """
        # Do not check the loss, because files of earlier versions may contain any loss.
        self._configure(**keras.saving.deserialize_keras_object(config))
        self.optimizer.build(self.trainable_variables)

    @property
    def config(self):
        """The model's config, such as a `ViTConfig`."""
        return config_of(self)

    @property
    def preprocessing(self):
        """The `keras_vit.Preprocessing` of the model's images."""
        return self.config.preprocessing

    @property
    def blocks(self):
        """The blocks in order: transformer blocks, residual units, inverted bottlenecks or VT modules."""
        return [self.get_layer(name) for name in self.config.block_names]

    @property
    def head(self):
        """The layer that computes the logits; None if the model has no head."""
        return next((layer for layer in self.layers if layer.name == "head"), None)


# Files of keras_vit 0.2 contain these class names.
for _name in ("VisionTransformer", "BigTransfer", "ConvolutionAndAttention", "EfficientNetModel", "VTResNetModel"):
    keras.saving.get_custom_objects()[f"keras_vit>{_name}"] = FamilyModel
# An .h5 file contains the name of a model's class without its package, and Keras looks it up globally.
keras.saving.get_custom_objects()["FamilyModel"] = FamilyModel

# The names of the config fields that all families have.
_SHARED = {field.name for field in dataclasses.fields(ModelConfig)}
# {builder argument of another library: our argument, or what the user should write instead}.
_TRANSLATIONS = {
    **dict.fromkeys(("classes", "num_labels", "n_classes"), "num_classes="),
    **dict.fromkeys(("image_shape", "img_size", "input_size"), "image_size="),
    **dict.fromkeys(("in_chans", "num_channels", "channels"), "in_channels="),
    **dict.fromkeys(("embed_dim", "hidden_size", "width", "dim"), "hidden_dim="),
    **dict.fromkeys(("depth", "num_hidden_layers"), "num_layers="),
    **dict.fromkeys(("heads", "num_attention_heads"), "num_heads="),
    **dict.fromkeys(("dropout", "drop_rate", "hidden_dropout_prob"), "dropout_rate="),
    **dict.fromkeys(("attn_drop_rate", "attention_probs_dropout_prob"), "attention_dropout_rate="),
    **dict.fromkeys(("drop_path", "stochastic_depth"), "drop_path_rate="),
    **{
        name: f'preprocessing=keras_vit.Preprocessing(...), or preprocessing={{"{name}": ...}} for this field'
        for name in ("mean", "std", "interpolation", "crop_fraction")
    },
    **dict.fromkeys(("act_layer", "hidden_act"), "activation="),
    "include_top": "num_classes=0 for a model without a head",
    "input_shape": "image_size=(height, width) and in_channels=",
    "input_tensor": "a call of the model: model(x)",
    "pretrained": "weights=, a tag of keras_vit.list_weights() or a path, or keras_vit.from_pretrained(path)",
    "mlp_ratio": "mlp_dim=, the hidden width of the MLPs",
    "intermediate_size": "mlp_dim=",
    "global_pool": "pooling=",
    "init_values": "layer_scale_init=",
    "layer_norm_eps": "layer_norm_epsilon=",
    "pooling": "num_classes=0 for a model without a head, which outputs the mean of its last features",
    "variant": 'a builder that takes a variant, such as keras_vit.ViT("B/16")',
    "weights": "keras_vit.from_pretrained(path)",
    "multi_label": 'task="multi_label" instead of True',
    "regression": 'task="regression" instead of True',
}
_POOLINGS = {"avg": "gap", "mean": "gap", "cls": "token", "max": None}


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Family:
    """The description of a model family, such as ViT or BiT. `keras_vit.models.catalog` lists all families.

    Args:
        config: Subclass of `ModelConfig`.
        connect: Function `connect(images, config, **options)` that applies the model's layers to the normalized images,
            and returns the outputs. The options (dropout rates, the head's initializer, rematerialization) do not
            change the inference of a trained model.
        builder: Name of the family's builder, such as "ViT".
        above: Names of the layers between the last block and the head.
        sources: The `Source`s of checkpoints. If several sources fit a file, the first one is used.
        read_config: Function `read_config(file, grid_size)` that returns the `Found` of a checkpoint. Only ViTs use
            `grid_size`, the (rows, columns) of the file's position embeddings.
        recognise: Function `recognise(keys, container, facts)` that returns the `Source` of a file with these keys,
            this format and these metadata, or None. If this function returns None, the `recognises` methods of
            `sources` are called.
        refused_h5: Regular expression of keys. If a key of a .weights.h5 file matches, the file is refused, because the
            package cannot read such files of this family.
        settings: Names of the config fields that change the outputs, but do not follow from the shapes of a file's
            arrays.
        fit: Function `fit(file, found, fields, given)` that checks config fields against a checkpoint, and returns a
            dict of the fields to change. `given` are the fields that the user passed.
        formats: Dict from a format name of `save_weights` to the `Source` with the weight names of this format.
        timm: Function `timm(config)` that returns the name of a timm architecture and the `model_args` to build it
            with. It raises ValueError if no architecture fits.
        transformers: Function `transformers(config, facts)` that returns the `Source` with transformers' weight names,
            a prefix for these names, and the contents of config.json. `facts` is the metadata that `save_weights`
            writes.
    """

    config: type[ModelConfig]
    connect: Callable
    builder: str
    above: tuple[str, ...]
    sources: tuple = ()
    read_config: Callable | None = None
    recognise: Callable = lambda keys, container, facts: None
    refused_h5: str = "(?!)"
    settings: tuple[str, ...] = ()
    fit: Callable = lambda file, found, fields, given: {}
    formats: Mapping = dataclasses.field(default_factory=dict)
    timm: Callable | None = None
    transformers: Callable | None = None

    @property
    def name(self):
        """The family's name, as in the config."""
        return self.config.family

    def make(self, config, *, name=None, dtype=None, **options):
        """Builds a model from a config, with random weights."""
        arguments.found("dtype", dtype, keras.dtype_policies.get, "a dtype policy of Keras")
        for option, value in options.items():
            if option.endswith("_rate"):
                arguments.rate(option, value)
        with _dtype_policy(dtype):
            inputs = keras.Input((*config.image_size, config.in_channels), name="images")
            images = layers.ImageNormalization(config=config, name="normalization")(inputs)
            return FamilyModel(inputs, self.connect(images, config, **options), name=name)

    def split(self, given, function=None):
        """Splits arguments into (config fields, options of `make`).

        Arguments that are None are omitted. Exceptions are optional fields that not all families have: for a field such
        as `head_dim`, None is a value.

        Raises:
            ValueError: If a name is neither a field nor an option. The error names `function`, which the user called.
        """
        fields = {field.name: field for field in dataclasses.fields(self.config)}
        options = (*self.connect.__kwdefaults__, "name", "dtype")
        for name, value in given.items():
            if name not in fields and name not in options:
                known = {*fields, *options, *(["weights"] if self.sources else [])}
                raise _unknown(name, value, function or self.builder, known)
        if isinstance(given.get("pooling"), str) and given["pooling"] in _POOLINGS:
            meant = _POOLINGS[given["pooling"]]
            hint = f'Did you mean "{meant}"?' if meant else "No layer of this package pools the maximum."
            raise ValueError(f"{arguments.invalid('pooling', 'a pooling of a ViT', given['pooling'])}. {hint}")
        found = {
            name: given[name]
            for name, field in fields.items()
            if name in given and (given[name] is not None or (field.metadata.get("optional") and name not in _SHARED))
        }
        return found, {name: given[name] for name in options if given.get(name) is not None}


P = ParamSpec("P")


def usual_arguments(
    variant: str,
    *,
    weights: str | os.PathLike | None = None,
    num_classes: int | None = None,
    image_size: int | tuple[int, int] | tuple[None, None] | None = None,
    in_channels: int | None = None,
    task: str | None = None,
    class_names: Sequence[str] | None = None,
    preprocessing: Preprocessing | dict[str, Any] | None = None,
    include_preprocessing: bool | None = None,
    classifier_activation: str | Callable | None = None,
    dropout_rate: float | None = None,
    drop_path_rate: float | None = None,
    head_init: str | keras.initializers.Initializer = "zeros",
    dtype: str | keras.DTypePolicy | None = None,
    name: str | None = None,
    **fields: Any,
) -> FamilyModel:
    """Declares the arguments that builders share, for editors and `help`. Nothing calls this function."""
    raise NotImplementedError


def takes(
    like: Callable[P, FamilyModel], family: Family
) -> Callable[[Callable[..., FamilyModel]], Callable[P, FamilyModel]]:
    """Returns a decorator that gives a builder the signature of `like`, without the arguments that `family` lacks."""
    known = {field.name for field in dataclasses.fields(family.config)} | {*family.connect.__kwdefaults__}
    known |= {"variant", "dtype", "name", "fields", *(["weights"] if family.sources else [])}

    def decorate(builder):
        signature = inspect.signature(like)
        shown = [parameter for name, parameter in signature.parameters.items() if name in known]
        builder.__signature__ = signature.replace(parameters=shown)
        return builder

    return decorate


def build(family, variant, given, defaults=None, function=None):
    """Builds the model of a variant from the arguments of a builder.

    `given` is a dict of the arguments. Its key "fields" may contain a dict of more arguments. `defaults` are the config
    fields in which a builder such as `DeiTB16` differs from its variant. Errors contain `function`, the function that
    the user called.
    """
    given, defaults = dict(given), defaults or {}
    given |= given.pop("fields", {})
    weights = given.pop("weights", None) if family.sources else None
    fields, options = family.split(given, function)
    options = {
        "name": family.config.variant_model_name(variant),
        **family.config.training_options_for(variant),
        **options,
    }
    if weights is not None:
        arguments.path("weights", weights)
        # Import `pretrained` only now, because it imports all families, which import this module.
        from keras_vit.models.pretrained import load_variant

        return load_variant(family, variant, weights, fields, options, defaults, function)
    if "preprocessing" in fields and "preprocessing" in defaults:
        fields["preprocessing"] = changed(defaults["preprocessing"], fields["preprocessing"])
    fields = {**defaults, **fields}
    preprocessing, class_names = fields.pop("preprocessing", None), fields.pop("class_names", None)
    config = family.config.from_variant(variant, **fields)
    return family.make(completed(config, changed(config.preprocessing, preprocessing), class_names), **options)


def completed(config, preprocessing, class_names):
    """Checks `preprocessing` and `class_names`, and returns a copy of the config with these values.

    If `preprocessing` is None, the copy keeps the config's preprocessing.
    """
    changes = {"class_names": arguments.class_names(class_names, config.num_classes)}
    if preprocessing is not None:
        changes["preprocessing"] = preprocessing_record(preprocessing).for_channels(config.in_channels)
    return config.replace(**changes)


def changed(preprocessing, value):
    """Returns a copy of `preprocessing` with the fields in the dict `value`. Returns `value` if it is not a dict."""
    if not isinstance(value, Mapping):
        return value
    # This call raises an error if a name is unknown or a value is invalid.
    preprocessing_record(value)
    return preprocessing.changed(**value)


def pre_logits(x, config):
    """Adds a dense layer of `representation_size` units and a separate tanh layer, as the official ViT code does.

    If `representation_size` is None, adds a layer that returns its input.
    """
    if config.representation_size is None:
        # Avoid Keras' Identity. A loaded model with an Identity and a map of dtype policies cannot be saved again.
        return keras.layers.Activation("linear", name="pre_logits")(x)
    init = initializers.LecunNormal()
    x = keras.layers.Dense(config.representation_size, kernel_initializer=init, name="pre_logits")(x)
    return keras.layers.Activation("tanh", name="pre_logits_tanh")(x)


def dense_head(x, config, head_init, name="head"):
    """Adds the head, which computes in float32; returns `x` for a model without classes."""
    if not config.num_classes:
        return x
    initializer = arguments.found("head_init", head_init, keras.initializers.get, "an initializer of Keras")
    options = {"activation": config.classifier_activation, "kernel_initializer": initializer, "dtype": "float32"}
    return keras.layers.Dense(config.num_classes, name=name, **options)(x)


def cut_from(model, inputs, outputs, **kwargs):
    """Returns a new model from `inputs` to `outputs`, which are tensors of `model`.

    The new model is a `FamilyModel` if `model` is a `FamilyModel`.
    """
    kind = FamilyModel if isinstance(model, FamilyModel) else keras.Model
    return kind(inputs, outputs, **kwargs)


def _unknown(name, value, function, known):
    meant = _TRANSLATIONS.get(name)
    # Suggest an argument only if this family has it.
    if meant and ("=" not in meant or meant.partition("=")[0] in known):
        hint = f". Use {meant}"
    else:
        # The name that another library uses may resemble an unrelated argument of this family. For such names, suggest
        # only arguments that contain the name.
        hint = arguments.nearest(name, known if meant is None else [each for each in known if name in each])
        hint = hint or f". See help(keras_vit.{function}) and the fields of its config"
    return ValueError(f"Expected an argument of keras_vit.{function}. Received: {name}={value!r}{hint}")


@contextlib.contextmanager
def _dtype_policy(dtype):
    """Sets Keras' global dtype policy within the context; None keeps the current policy."""
    before = keras.config.dtype_policy()
    if dtype is not None:
        keras.config.set_dtype_policy(dtype)
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)
