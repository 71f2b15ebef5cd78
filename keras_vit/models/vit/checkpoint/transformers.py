"""Reads the fields that files of transformers imply in addition to their arrays."""

from keras_vit import arguments
from keras_vit.models.vit.checkpoint.official import put_fixed_positions, put_pooling
from keras_vit.models.vit.checkpoint.original import has_two_kinds
from keras_vit.weights import timm_config, transformers_config
from keras_vit.weights.found import DEFAULT, STATED, put_preprocessing

_DEFAULT = f"{DEFAULT} transformers"
# {transformers' name of an activation: our name}.
ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_tanh": "gelu_tanh",
    "quick_gelu": "quick_gelu",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
    "tanh": "tanh",
}
# The keys of config.json that are read, or whose values follow from the arrays.
_READ = {
    *("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "hidden_act", "layer_norm_eps"),
    *("image_size", "patch_size", "num_channels", "qkv_bias", "pooler_act", "pooler_output_size", "mlp_ratio"),
    *("use_swiglu_ffn", "use_gated_mlp", "num_register_tokens", "query_bias", "key_bias", "value_bias", "proj_bias"),
    *("mlp_bias", "rope_theta", "rope_parameters", "projection_dim", "vision_use_head", "layerscale_value"),
}


def read_config(file, found):
    """Adds the fields of a folder by its config.json, or of a bare file by its keys."""
    source, config = file.source, {}
    put_preprocessing(found, source, not has_two_kinds(file, found))
    if file.container == "huggingface":
        stated = {key: value for key, value in file.config.items() if value is not None}
        config = {**transformers_config.CONFIGS[file.config["model_type"]], **stated}
        transformers_config.read_folder(file, found, _READ)
        timm_config.put_heads(file, found, config["num_attention_heads"], _origin(file, "num_attention_heads"))
    put_pooling(file, found)
    _read_activation(file, found, config)
    epsilon = config.get("layer_norm_eps", source.layer_norm_epsilon)
    checked = timm_config.checked(file, arguments.epsilon, "layer_norm_eps", epsilon)
    found.put(_origin(file, "layer_norm_eps"), layer_norm_epsilon=checked)
    if "pre_logits/kernel" in file.weights:
        timm_config.translated(file.path, "pooler_act", config.get("pooler_act", "tanh"), {"tanh": "tanh"})
    if source.name == "huggingface" and "head/kernel" not in file.weights:
        # DeiTModel has a distillation token, but outputs only the class token.
        found.put(STATED, distillation_head=False)
    _read_rotary(file, found, config)
    put_fixed_positions(file, found, "none" if source.name == "dinov3" else None)


def _origin(file, key):
    return _DEFAULT if file.config.get(key) is None else STATED


def _read_activation(file, found, config):
    source, gated = file.source, found.get("gated_mlp")
    if gated and source.gated_activation:
        found.put(_DEFAULT, activation=source.gated_activation)
    elif "hidden_act" in config:
        activation = timm_config.translated(file.path, "hidden_act", config["hidden_act"], ACTIVATIONS)
        found.put(_origin(file, "hidden_act"), activation=activation)
    elif source.name == "clip" or (source.name == "dinov3" and gated):
        found.leave(f"{source.name} files do not contain it", "activation")
    else:
        found.put(_DEFAULT, activation=source.activation)


def _read_rotary(file, found, config):
    if file.source.name != "dinov3":
        found.put(_DEFAULT, rotary_embedding=None, rotary_grid=None)
        return
    parameters = config.get("rope_parameters") or {}
    theta = config.get("rope_theta", parameters.get("rope_theta", 100))
    timm_config.translated(file.path, "rope_type", parameters.get("rope_type", "default"), {"default": "default"})
    timm_config.translated(file.path, "rope_theta", theta, {100: 100})
    found.put(STATED, rotary_embedding="dinov3", rotary_grid=None)
