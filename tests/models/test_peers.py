"""Compares models with timm and transformers. With KERAS_VIT_PEERS=1, a missing package is a failure (`pip install
-e ".[peers]"`, then `pip install --no-deps timm`)."""

import json

import keras
import numpy as np
import pytest
import safetensors.numpy

import keras_vit
from keras_vit.models.catalog import identify, read_config
from keras_vit.models.vit import timm_folder, timm_models
from keras_vit.weights.read import WeightsFile, open_checkpoint
from keras_vit.weights.read.file import Entry
from keras_vit.weights.write import write_safetensors
from tests.peers import peer
from tests.tiny import build, randomize
from tests.weights.helpers import check_refused, images

pytestmark = pytest.mark.long
# One name for each kind of timm model.
TIMM = (
    *("vit_base_patch16_clip_quickgelu_224", "vit_large_patch14_clip_224", "vit_giant_patch14_reg4_dinov2"),
    *("vit_small_patch16_dinov3", "vit_small_plus_patch16_dinov3_qkvb", "vit_giant_patch16_lingbot"),
    *("eva02_tiny_patch14_336", "eva02_base_patch14_224", "eva02_large_patch14_clip_224", "eva_giant_patch14_clip_224"),
    *("vit_medium_patch16_rope_reg1_gap_256", "vit_mediumd_patch16_rope_reg1_gap_256", "vit_base_patch16_rope_224"),
    *("vit_large_patch16_rope_ape_224", "vit_base_patch32_siglip_256", "vit_so400m_patch16_siglip_gap_256"),
    *("vit_so150m_patch16_reg4_gap_256", "vit_so150m_patch16_reg4_map_256", "vit_base_patch16_224_miil"),
)
TINY = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "image_size": 32, "patch_size": 8}
_SIZES = {**TINY, "intermediate_size": 40}
_RATIO = {**TINY, "mlp_ratio": 2}
_TEXT = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 50}
_TEXT |= {"bos_token_id": 0, "eos_token_id": 1}


@pytest.fixture(scope="module")
def torch():
    return peer("torch")


def outputs(model):
    return [keras.ops.convert_to_numpy(y) for y in keras.tree.flatten(model(images(model)))]


def run(torch, module, model):
    with torch.no_grad():
        return module.eval()(torch.from_numpy(images(model)).permute(0, 3, 1, 2).contiguous())


def test_transformers_reads_both_heads_of_distilled_model(torch, tmp_path):
    transformers = peer("transformers")
    model = randomize(build(distillation_token=True, return_both_heads=True, activation="gelu"))
    keras_vit.save_weights(model, tmp_path / "folder", "huggingface")
    module = transformers.DeiTForImageClassificationWithTeacher.from_pretrained(tmp_path / "folder")
    theirs = run(torch, module, model)
    for ours, y in zip(outputs(model), (theirs.cls_logits, theirs.distillation_logits), strict=True):
        np.testing.assert_allclose(y.numpy(), ours, atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("name", ["vit_tiny_r_s16_p8_224", "vit_small_r26_s32_224", "resnetv2_50x1_bit"])
def test_published_resnets_of_timm_compute_the_same(torch, tmp_path, name):
    timm = peer("timm")
    module = timm.create_model(name, num_classes=7).eval()
    for key, parameter in module.named_parameters():
        torch.nn.init.normal_(parameter, parameter.ndim == 1 and "bias" not in key, 0.05)
    arrays = {key: x.numpy() for key, x in module.state_dict().items()}
    config = {"architecture": name, "num_classes": 7, "pretrained_cfg": module.pretrained_cfg}
    (tmp_path / "config.json").write_text(json.dumps(config, default=str))
    safetensors.numpy.save_file(arrays, tmp_path / "model.safetensors")
    model = keras_vit.from_pretrained(tmp_path)
    assert model.input_shape == (None, 224, 224, 3) and model.config.resnet_epsilons == "timm"
    assert model.preprocessing.crop_fraction == module.pretrained_cfg["crop_pct"]
    theirs, (ours,) = run(torch, module, model).numpy(), outputs(model)
    np.testing.assert_allclose(ours, theirs, atol=1e-4 * np.abs(theirs).max())


@pytest.mark.parametrize("name", TIMM)
def test_timm_folder_computes_the_same(torch, tmp_path, name):
    sizes = {"img_size": (48, 64), "embed_dim": 24, "depth": 2, "num_heads": 3, "num_classes": 5}
    module = peer("timm").create_model(name, **sizes)
    # These weights make the epsilon and the activation matter.
    for key, parameter in module.named_parameters():
        torch.nn.init.normal_(parameter, float("norm" in key and key.endswith("weight")), 0.3)
        if key in ("cls_token", "reg_token", "pos_embed", "patch_embed.proj.weight", "patch_embed.proj.bias"):
            parameter.data *= 0.03
    peer("timm.models").save_for_hf(module, tmp_path, safe_serialization=True)
    model = keras_vit.from_pretrained(tmp_path)
    assert model.config.image_size == (48, 64)
    theirs = run(torch, module, model).numpy()
    np.testing.assert_allclose(outputs(model)[0], theirs, atol=1e-5 * np.abs(theirs).max())


def test_table_of_timm_models_equals_timm(torch):
    """Builds each model of the table on the meta device, without memory for its weights."""
    timm = peer("timm")
    for name, fields in timm_models.MODELS.items():
        with torch.device("meta"):
            module = timm.create_model(name, depth=1)
        block = module.blocks[0]
        pooling = {"token": "token", "avg": "gap", "map": "map"}[module.global_pool]
        expected = tuple(fields[key] for key in ("num_heads", "layer_norm_epsilon", "pooling"))
        assert (block.attn.num_heads, block.norm1.eps, pooling) == expected, name
        activation = {"GELU": "gelu", "GELUTanh": "gelu_tanh", "QuickGELU": "quick_gelu"}
        if (found := type(block.mlp.act).__name__) != "SiLU":
            assert activation[found] == fields["activation"], name
        assert (getattr(module, "rope", None) is None) == (fields["rotary_embedding"] is None), name


# (timm's architecture, changes that a folder states).
WRITTEN = (
    ("test_vit", {"activation": "gelu_tanh", "image_size": (16, 48), "preprocessing": {"mean": 0.4}}),
    ("test_vit", {"in_channels": 1, "num_classes": 0, "activation": "silu"}),
    ("test_vit", {"image_size": (None, None), "position_interpolation": "bicubic_antialias"}),
    ("deit_tiny_distilled_patch16_224", {}),
    ("deit3_small_patch16_224", {}),
    ("vit_small_patch14_reg4_dinov2", {"image_size": 28}),
    ("vit_medium_patch16_clip_224", {}),
    ("vit_base_patch32_siglip_256", {"activation": "quick_gelu"}),
    ("vit_base_patch16_siglip_gap_256", {}),
    ("vit_tiny_r_s16_p8_224", {"image_size": 128, "resnet_epsilons": "timm"}),
    ("vit_small_patch16_dinov3", {}),
    ("vit_tiny_patch16_dinov3_qkvb", {"image_size": (16, 48)}),
    ("vit_small_patch16_rope_224", {}),
    ("vit_small_patch16_rope_ape_224", {}),
    ("eva02_tiny_patch14_224", {"image_size": 28}),
    ("eva02_base_patch14_448", {"image_size": 28}),
)


def scaled(model):
    """Randomizes weights of wide and deep models so that rounding errors stay small."""
    randomize(model)
    for weight in model.weights:
        if len(weight.shape) > 1:
            weight.assign(weight / np.sqrt(np.prod(weight.shape[:-1])))
        else:
            weight.assign(weight * 0.1 + float(weight.path.endswith("gamma")))
    return model


def fields_of_name(name):
    fields = dict(timm_folder.settings_of_name(name))
    scale = 0.1 if fields.pop("layer_scale") else None
    return {**fields, "layer_scale_init": scale}


@pytest.mark.parametrize("name, changes", WRITTEN)
def test_timm_computes_same_from_folder(torch, tmp_path, name, changes):
    timm = peer("timm")
    model = scaled(build(**{**fields_of_name(name), "image_size": 32, **changes}))
    keras_vit.save_weights(model, tmp_path / "folder", "timm")
    # timm builds the model with the settings of the folder.
    module = timm.create_model(f"local-dir:{tmp_path / 'folder'}", pretrained=True)
    assert json.loads((tmp_path / "folder" / "config.json").read_text())["architecture"].rsplit("_", 1)[0] in name
    expected = outputs(model)[0]
    np.testing.assert_allclose(run(torch, module, model).numpy(), expected, atol=1e-5 * np.abs(expected).max())
    config = model.preprocessing
    data = peer("timm.data").resolve_model_data_config(module)
    if not model.config.any_size:
        assert data["input_size"][1:] == model.config.image_size
    assert data["interpolation"] == config.interpolation
    low, high = config.value_range
    np.testing.assert_allclose(data["mean"], (np.array(config.mean) - low) / (high - low) * np.ones(len(data["mean"])))
    # The folder gives the same model without the record of this package.
    arrays = open_checkpoint(tmp_path / "folder")
    write_safetensors(tmp_path / "folder" / "model.safetensors", dict(arrays.read(arrays.entries)), {})
    size = {"image_size": (None, None)} if model.config.any_size else {}
    again = keras_vit.from_pretrained(tmp_path / "folder", **size)
    np.testing.assert_allclose(outputs(again)[0], expected, atol=1e-6 * np.abs(expected).max())


def test_settings_of_written_names_equal_timm(torch):
    """Reads the shapes of timm's model on the meta device, without memory for its weights."""
    timm = peer("timm")
    for name in timm_models.MODELS:
        settings = timm_folder.settings_of_name(name)
        if settings is None:
            continue
        with torch.device("meta"):
            module = timm.create_model(name)
        file = WeightsFile(name)
        file.container, file.facts = "timm", {"config": {"architecture": name, "global_pool": module.global_pool}}
        file.facts["timm"] = {"input_size": module.pretrained_cfg["input_size"]}
        file.entries = {key: Entry(tuple(x.shape), "float32") for key, x in module.state_dict().items()}
        _, canonical = identify(file)
        values = {key: value.value for key, value in read_config(canonical).values.items()}
        values["layer_scale"] = "layer_scale_init" in values
        if not values["class_token"]:
            values["class_token_position"] = True
        for field, value in settings.items():
            assert values.get(field, value) == value, (name, field)


def test_timm_computes_same_from_bit_folder(torch, tmp_path):
    timm, options = peer("timm"), {"resnet_epsilons": "timm", "pool_padding": "zeros"}
    model = keras_vit.BiTR50x1(image_size=33, num_classes=5, **options)
    keras_vit.save_weights(randomize(model, scale=0.05), tmp_path / "folder", "timm")
    module = timm.create_model(f"local-dir:{tmp_path / 'folder'}", pretrained=True)
    expected = outputs(model)[0]
    np.testing.assert_allclose(run(torch, module, model).numpy(), expected, atol=1e-5 * np.abs(expected).max())
    assert keras_vit.from_pretrained(tmp_path / "folder").config == model.config


_BACKBONE = {"num_classes": 0, "activation": "gelu"}
_DISTILLED = {"distillation_token": True, "distillation_head": False}
_DINOV2 = {"layer_scale_init": 0.1, "mlp_dim": 24}
_GATED = {"gated_mlp": True, "activation": "silu", "mlp_dim": 16}
_DINOV3_HF = {"layer_scale_init": 0.1, "position_embedding": "none", "rotary_embedding": "dinov3", "num_classes": 0}
_CLIP = {"norm_before_blocks": True, "patch_bias": False, "num_classes": 0, "activation": "quick_gelu"}
# (class of transformers, arguments of the model that is saved, output of the class)
TRANSFORMERS = [
    ("ViTForImageClassification", {}, "logits"),
    ("ViTForImageClassification", {"image_size": (16, 24)}, "logits"),
    ("ViTForImageClassification", {"activation": "gelu", "layer_norm_epsilon": 1e-12}, "logits"),
    ("ViTModel", {"num_classes": 0, "representation_size": 12}, "pooler_output"),
    ("ViTForImageClassification", {"qkv_bias": False}, "logits"),
    ("ViTForImageClassification", {"key_bias": False}, "logits"),
    ("DeiTForImageClassification", _DISTILLED, "logits"),
    ("DeiTModel", {**_BACKBONE, **_DISTILLED, "representation_size": 12}, "pooler_output"),
    ("IJepaForImageClassification", {"pooling": "gap", "image_size": (16, 24)}, "logits"),
    ("IJepaModel", {**_BACKBONE, "pooling": "gap"}, "mean"),
    ("Dinov2Model", {**_BACKBONE, **_DINOV2}, "pooler_output"),
    ("Dinov2Model", {**_BACKBONE, **_DINOV2, **_GATED}, "pooler_output"),
    ("Dinov2ForImageClassification", {**_DINOV2, **_GATED, "pooling": "token_gap"}, "logits"),
    ("Dinov2WithRegistersModel", {**_BACKBONE, **_DINOV2, "num_registers": 2}, "pooler_output"),
    ("Dinov2WithRegistersForImageClassification", {**_DINOV2, "num_registers": 2, "pooling": "token_gap"}, "logits"),
    ("DINOv3ViTModel", {**_DINOV3_HF, "num_registers": 4, "key_bias": False}, "pooler_output"),
    ("DINOv3ViTModel", {**_DINOV3_HF, **_GATED, "image_size": (16, 24)}, "pooler_output"),
    ("DINOv3ViTModel", {**_DINOV3_HF, "qkv_bias": False, "image_size": (None, None)}, "pooler_output"),
    ("SiglipVisionModel", {"pooling": "map", "num_classes": 0}, "pooler_output"),
    ("CLIPVisionModel", _CLIP, "pooler_output"),
    ("CLIPVisionModelWithProjection", {**_CLIP, "projection_dim": 7}, "image_embeds"),
]


@pytest.mark.parametrize("name, arguments, output", TRANSFORMERS)
def test_each_transformers_class_computes_same_from_folder(torch, tmp_path, name, arguments, output):
    model = randomize(build(**arguments))
    keras_vit.save_weights(model, tmp_path / "folder", "huggingface")
    kind = getattr(peer("transformers"), name)
    module, told = kind.from_pretrained(tmp_path / "folder", output_loading_info=True)
    assert module.config.architectures == [name]
    # The mask token belongs to pre-training; 0 registers have no tokens.
    assert {key.rpartition(".")[2] for key in told["missing_keys"]} <= {"mask_token", "register_tokens"}
    assert not told["unexpected_keys"] and not told["mismatched_keys"]
    x = images(model)
    with torch.no_grad():
        theirs = their_output(module.eval(), output, torch.from_numpy(x).permute(0, 3, 1, 2).contiguous())
    ours = keras.ops.convert_to_numpy(model(x))
    assert np.abs(theirs.numpy() - ours).max() / np.abs(ours).max() < 1e-5
    again = keras_vit.from_pretrained(tmp_path / "folder")
    assert again.config == model.config
    np.testing.assert_array_equal(keras.ops.convert_to_numpy(again(x)), ours)


def their_output(module, output, x, **options):
    """Returns an output of a model of transformers."""
    if output == "image_features":
        found = module.get_image_features(x, **options)
        return getattr(found, "pooler_output", found)
    if output not in ("class_token", "mean"):
        return module(x, **options)[output]
    # Some classes do not return the tokens of their backbone.
    tokens = getattr(module, module.base_model_prefix, module)(x, **options).last_hidden_state
    return tokens[:, 0] if output == "class_token" else tokens.mean(1)


# (class of transformers, its configuration, the output that our model computes)
READ = [
    ("ViTForImageClassification", {**_SIZES, "qkv_bias": False, "num_labels": 5}, "logits"),
    ("ViTForImageClassification", {**_SIZES, "hidden_act": "quick_gelu", "num_labels": 5}, "logits"),
    ("ViTForMaskedImageModeling", {**_SIZES, "encoder_stride": 8}, "class_token"),
    ("ViTMAEModel", {**_SIZES, "mask_ratio": 0.0}, "class_token"),
    ("ViTMAEForPreTraining", {**_SIZES, "mask_ratio": 0.0, "decoder_num_hidden_layers": 1}, "class_token"),
    ("ViTMSNModel", _SIZES, "class_token"),
    ("IJepaModel", _SIZES, "mean"),
    ("IJepaForImageClassification", {**_SIZES, "num_labels": 5}, "logits"),
    ("DeiTModel", _SIZES, "pooler_output"),
    ("DeiTForMaskedImageModeling", {**_SIZES, "encoder_stride": 8}, "class_token"),
    ("DeiTForImageClassification", {**_SIZES, "num_labels": 5}, "logits"),
    ("Dinov2Model", _RATIO, "pooler_output"),
    ("Dinov2Model", {**_RATIO, "use_swiglu_ffn": True}, "pooler_output"),
    ("Dinov2WithRegistersModel", {**_RATIO, "num_register_tokens": 2}, "pooler_output"),
    ("Dinov2ForImageClassification", {**_RATIO, "use_swiglu_ffn": True, "num_labels": 5}, "logits"),
    ("Dinov2WithRegistersForImageClassification", {**_RATIO, "num_labels": 5}, "logits"),
    ("DINOv3ViTModel", {**_SIZES, "num_register_tokens": 4}, "pooler_output"),
    ("DINOv3ViTModel", {**_SIZES, "use_gated_mlp": True, "hidden_act": "silu", "key_bias": True}, "pooler_output"),
    ("DINOv3ViTModel", {**_SIZES, "use_gated_mlp": True, "query_bias": False, "value_bias": False}, "pooler_output"),
    ("SiglipVisionModel", _SIZES, "pooler_output"),
    ("SiglipModel", {"vision_config": _SIZES, "text_config": _TEXT}, "image_features"),
    ("SiglipForImageClassification", {"vision_config": _SIZES, "text_config": _TEXT, "num_labels": 5}, "logits"),
    ("CLIPVisionModel", _SIZES, "pooler_output"),
    ("CLIPVisionModelWithProjection", {**_SIZES, "hidden_act": "gelu"}, "image_embeds"),
    ("CLIPModel", {"vision_config": _SIZES, "text_config": _TEXT, "projection_dim": 10}, "image_features"),
]


def drawn(torch, name, config):
    """Returns a model of transformers with random weights."""
    kind = getattr(peer("transformers"), name)
    module = kind._from_config(kind.config_class(**config), attn_implementation="eager")
    generator = torch.Generator().manual_seed(0)
    for key, parameter in sorted(module.named_parameters()):
        centre = 1.0 if parameter.ndim == 1 and "bias" not in key else 0.0
        torch.nn.init.normal_(parameter, centre, 0.2, generator=generator)
    return module.eval()


@pytest.mark.parametrize("name, config, output", READ)
@pytest.mark.parametrize("image_size", [None, (48, 24)])
def test_transformers_folder_computes_the_same(torch, tmp_path, name, config, output, image_size):
    module = drawn(torch, name, config)
    module.save_pretrained(tmp_path)
    model = keras_vit.from_pretrained(tmp_path, image_size=image_size, preprocessing=keras_vit.Preprocessing())
    # DINOv2 and DINOv3 accept any size without this option.
    options = {} if image_size is None or name.upper().startswith("DINO") else {"interpolate_pos_encoding": True}
    with torch.no_grad():
        x = torch.from_numpy(images(model)).permute(0, 3, 1, 2).contiguous()
        expected = their_output(module, output, x, **options).numpy()
    difference = np.abs(outputs(model)[0] - expected).max() / np.abs(expected).max()
    assert difference < 1e-4


def test_unsupported_transformers_folder_is_refused(torch, tmp_path):
    drawn(torch, "DINOv3ViTModel", {**_SIZES, "rope_theta": 50.0}).save_pretrained(tmp_path)
    check_refused("rope_theta=50.0 is not supported. Expected one of 100", tmp_path)
    # This class averages the patches without the last norm.
    config = {"vision_config": _SIZES, "text_config": _TEXT, "num_labels": 5}
    drawn(torch, "CLIPForImageClassification", config).save_pretrained(tmp_path)
    check_refused(r"(?s)not in the model .*classifier\.bias", tmp_path)


@pytest.mark.parametrize(
    "changes, name",
    [({}, "tf_efficientnet_b0"), ({"padding": "symmetric", "batch_norm_epsilon": 1e-5}, "efficientnet_b0")],
)
def test_timm_computes_same_from_efficientnet(torch, tmp_path, changes, name):
    timm = peer("timm")
    model = keras_vit.EfficientNet("B0", image_size=(65, 96), num_classes=5, head_init="glorot_uniform", **changes)
    for layer in model._flatten_layers():
        # With the statistics of images, the logits depend on the images.
        if isinstance(layer, keras.layers.BatchNormalization):
            layer.momentum = 0.0
    model(np.random.default_rng(1).normal(size=(6, 65, 96, 3)), training=True)
    keras_vit.save_weights(model, tmp_path / "folder", "timm")
    module = timm.create_model(f"local-dir:{tmp_path / 'folder'}", pretrained=True)
    assert json.loads((tmp_path / "folder" / "config.json").read_text())["architecture"] == name
    ours, theirs = outputs(model)[0], run(torch, module, model).numpy()
    assert np.abs(ours - theirs).max() <= 1e-4 * np.abs(ours).max() and np.abs(ours[0] - ours[1]).max() > 0.1
    timm.models.save_for_hf(module, tmp_path / "theirs", safe_serialization=True)
    again = keras_vit.from_pretrained(tmp_path / "theirs", image_size=(65, 96))
    np.testing.assert_array_equal(outputs(again)[0], ours)
