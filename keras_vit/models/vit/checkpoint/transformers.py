"""Reads config fields that arrays do not show, for files of transformers."""

from keras_vit import arguments
from keras_vit.weights import timm_config, transformers_config
from keras_vit.weights.found import DEFAULT, STATED

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
    """Adds to `found` the config fields that the config.json of a folder, or the keys of a single file, determine."""
    source, config = file.source, {}
    if file.container == "huggingface":
        stated = {key: value for key, value in file.config.items() if value is not None}
        config = {**transformers_config.CONFIGS[file.config["model_type"]], **stated}
        transformers_config.read_folder(file, found, _READ)
        timm_config.put_heads(file, found, config["num_attention_heads"], _origin(file, "num_attention_heads"))
    gated = found.get("gated_mlp")
    # transformers ignores the config's activation in gated MLPs of DINOv2.
    is_fixed = gated and source.gated_activation
    if not is_fixed and "hidden_act" in config:
        activation = timm_config.translated(file.path, "hidden_act", config["hidden_act"], ACTIVATIONS)
        found.put(_origin(file, "hidden_act"), activation=activation)
    elif not is_fixed and (source.name == "clip" or (source.name == "dinov3" and gated)):
        found.leave(f"{source.name} files do not contain it", "activation")
    epsilon = config.get("layer_norm_eps", source.layer_norm_epsilon)
    checked = timm_config.checked(file, arguments.epsilon, "layer_norm_eps", epsilon)
    found.put(_origin(file, "layer_norm_eps"), layer_norm_epsilon=checked)
    if "pre_logits/kernel" in file.weights:
        timm_config.translated(file.path, "pooler_act", config.get("pooler_act", "tanh"), {"tanh": "tanh"})
    if source.name == "huggingface" and "head/kernel" not in file.weights:
        # DeiTModel has a distillation token, but outputs only the class token.
        found.put(STATED, distillation_head=False)
    if source.name == "dinov3":
        parameters = config.get("rope_parameters") or {}
        theta = config.get("rope_theta", parameters.get("rope_theta", 100))
        timm_config.translated(file.path, "rope_type", parameters.get("rope_type", "default"), {"default": "default"})
        timm_config.translated(file.path, "rope_theta", theta, {100: 100})
        found.put(STATED, rotary_embedding="dinov3", rotary_grid=None)


def _origin(file, key):
    return _DEFAULT if file.config.get(key) is None else STATED
