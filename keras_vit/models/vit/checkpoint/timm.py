"""Reads config fields that arrays do not show, for files of timm, of DeiT and of OpenCLIP's timm towers."""

from keras_vit.models.vit import timm_models
from keras_vit.weights import timm_config
from keras_vit.weights.found import DEFAULT, KNOWN


def read_config(file, found):
    """Adds config fields to `found`, from the architecture in a timm folder, or from the keys of a state dict."""
    if file.container == "timm":
        timm_config.read_folder(file, found)
        _read_architecture(file, found)
    else:
        _read_state_dict(file, found)


def _read_architecture(file, found):
    fields = timm_models.fields_from_folder(file.path, file.config)
    why = f"it is not in the folder's model_args, and timm's architecture {file.model_name!r} is not known"
    unknown = {name: why for name in ("num_heads", *timm_models.DEFAULT) if name not in fields}
    own = fields.pop("act_layer", None)
    if found.get("gated_mlp"):
        # Gated MLPs have another default activation.
        fields["activation"] = own or file.source.gated_activation
        unknown.pop("activation", None)
    if "num_heads" in fields:
        timm_config.put_heads(file, found, fields.pop("num_heads"), f"{KNOWN} {file.model_name}")
    found.put(f"{KNOWN} {file.model_name}", **fields)
    found.doubt(unknown)


def _read_state_dict(file, found):
    source = file.source
    if source.name == "timm" and found.get("norm_before_blocks"):
        found.put(f"{DEFAULT} timm", layer_norm_epsilon=1e-5)
    # DeiT III's own files name layer scales as timm's `Eva` does, so these keys do not show that the model is an `Eva`.
    marks = [key for key in file.shapes if timm_models.is_eva_key(key)]
    of_deit = source.name == "deit" and all("gamma" in key for key in marks)
    found.doubt(timm_models.unknown_of_arrays(file.weights, bool(marks) and not of_deit, found.get("gated_mlp")))
    if found.get("gated_mlp"):
        found.put(f"{DEFAULT} {source.name}", activation=source.gated_activation)
