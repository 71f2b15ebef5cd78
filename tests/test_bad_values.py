"""Passes bad values to each argument of each public function. The error must be ours, and name the argument."""

import contextlib
import inspect
import re

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit import data, pretraining, semi_supervised, training
from keras_vit.models import builders
from tests.tiny import TINY, build

pytest.importorskip("tensorflow", reason="the datasets are tf.data")
HUGE, NAN, WORD = 10**400, float("nan"), "nonsense"
NUMBER = ("0.5", NAN, HUGE, [0.5, "x"])
# {kind: values that no argument of this kind takes}. None is added for arguments whose default is not None.
BAD = {
    "bool": ("yes", 2, NAN),
    "choice": (WORD, 5, NAN, [WORD]),
    "images": ("abc", 5, np.full((2, 16, 16, 3), NAN, "float32"), np.zeros(3, "float32")),
    "model": ("ViTB16", 5, NAN, np.zeros(3)),
    "non_negative": (*NUMBER, -0.1),
    "number": NUMBER,
    "object": ("abc", 5, NAN),
    "pair": ("3", 1.5, NAN, -1, HUGE, (1,), (1, 2, 3), (4, -4)),
    "positive": (*NUMBER, 0, -1.0),
    "rate": (*NUMBER, -0.1, 1.5),
    "sizes": (5, "cat", [1.5], [-99], [HUGE], NAN),
    "strings": (5, "cat", [1, 2], NAN),
    "tensor": ("abc", HUGE),
    "text": (5, NAN, [1]),
    "whole": ("3", 1.5, NAN, -1, HUGE, [1, 2, 3]),
}
# {kind: names of arguments}. An argument with a bool as default is a "bool"; "function.argument" is for one function.
KINDS = {
    "bool": "antialias bottleneck class_token drop_remainder files flip include_preprocessing normalize overwrite",
    "choice": "architecture crop crop_rounding decay distribution downsampling dtype expanded_from family format"
    " head_fusion head_init initializer interpolation kind loss method operations pool_padding pool_type pooling"
    " position_embedding position_interpolation postprocess precision readout resize_mode resnet_epsilons"
    " rotary_embedding rotary_layout source subset task tta transformer_norm variant weights padding"
    " Source.labels pipeline.labels Recipe.train Recipe.policy Recipe.optimizer",
    "images": "attention distance filters image images logits matrix predictions probabilities similarity"
    " teacher_logits x",
    "model": "backbone model student teacher",
    "non_negative": "magnitude magnitude_std se_ratio uda_weight warmup_epochs warmup_percent weight_decay",
    "number": "layer_scale_init mean init_value",
    "object": "accuracies activation augment augmented cache callbacks classes classifier_activation command config"
    " conv_activation data devices frame history l2 labelled labels layouts make_dataset members mesh multipliers"
    " normalization optimizer policy preprocessing pseudo_labelled randaugment recipe reconstruction records scale"
    " se_activation seeds students sweep tasks teacher_preprocessing test train unlabelled validation_data warm_up"
    " ensemble.weights pipeline.source relabelled.source Recipe.model noisy_student.train",
    "pair": "grid_size image_size mask_unit patch_size resize_size rotary_grid stem_widths table_image_size"
    " value_range",
    "positive": "alpha batch_norm_epsilon clip crop_fraction epsilon global_clipnorm layer_norm_epsilon learning_rate"
    " peak ratio rho sam std temperature tolerance uda_temperature width_factor Recipe.epochs Recipe.layer_decay",
    "rate": "attention_dropout_rate beta_1 beta_2 crop_scale cutmix discard_ratio drop_path_rate dropout_rate ema"
    " erasing holdout label_smoothing mask_ratio masked_share mixup momentum patch_dropout_rate rate swapped_share"
    " threshold uda_threshold validation_split Distiller.alpha weighted_loss.alpha",
    "sizes": "blocks conv_depths depths modules repeats stages widths",
    "strings": "class_names file_names titles",
    "tensor": "base_loss distillation_loss",
    "text": "allow coordinator cost custom_module data_dir dataset directory expected extension folder label_column"
    " label_separator layer log_dir name notes out path path_column resume sha256 skip split test_split title"
    " train_split weight_column predict_images.images splits.images write_report.images saved_model.labels"
    " splits.data Recipe.source",
    "whole": "accumulate batch_size channels decoder_hidden_dim decoder_mlp_dim decoder_num_heads decoder_num_layers"
    " epochs every head_dim hidden_dim in_channels k keep key_dim lora_rank max_batch_size max_input_pixels max_pixels"
    " max_relative_distance min_size min_steps mlp_dim model_devices num_batches num_classes num_heads num_images"
    " num_layers num_mistakes num_modules num_operations num_outputs num_parallel_calls num_prefix_positions"
    " num_prefix_tokens num_processes num_registers num_shards num_tokens number per_class position_mlp_dim"
    " process_id projection_dim quality query rank representation_size save_every seed shard_index shorter_side shots"
    " skip_batches steps steps_per_epoch token_dim token_merging top total_steps uda_steps verbose warmup_steps width"
    " device_mesh.model freeze.blocks index shuffle Policy.repeats",
}
KIND_OF = {name: kind for kind, names in KINDS.items() for name in names.split()}
# (bad values of their kind, the arguments that take them)
TAKEN_BY = (
    # A linear activation or Keras' default initializer; all modules, images or classes; no labels, clipping or device;
    # no model, for data that are features; the usual image size.
    (
        (None,),
        "activation classifier_activation modules blocks few_shot_accuracy.shots label_column Source.labels"
        " Recipe.batch_size Recipe.clip global_clipnorm distributed.kind few_shot_accuracy.model"
        " imagenet_real_accuracy.model knn_accuracy.model linear_probe_accuracy.model LayerDecay.name"
        " ClassToken.initializer paper_table.image_size",
    ),
    # The run finds the name. A path may have any name.
    ((WORD,), "Recipe.policy Recipe.variant Recipe.weights run.weights"),
    (("abc", "yes"), "cache frame imagenet_real_accuracy.labels"),
    # Classes may have numbers as names.
    (([1, 2],), "Source.class_names from_dataframe.class_names"),
    # Several numbers instead of one, or the reverse.
    (([1, 2, 3],), "accuracy.k"),
    ((5,), "l2 seeds"),
    # Fractions of an epoch are trained, and the schedule of the run refuses fractions of a step.
    ((1.5,), "preflight.epochs Recipe.warmup_steps Recipe.min_steps"),
    # Keras gives these arguments a meaning.
    (("yes", 2, 5, NAN, [1], None), "TerminateOnNaN.raise_error HardDistillation.name SoftDistillation.name"),
)
TAKEN = {name: values for values, names in TAKEN_BY for name in names.split()}

IMAGES, EYE, PICTURE, MAP = np.zeros((2, 16, 16, 3), "float32"), np.eye(2), np.zeros((8, 8, 3)), np.ones((1, 2, 2))
SHARED = {"num_classes": 2, "image_size": 32}
COATNET = {"depths": (1, 1, 1, 1), "widths": (32, 32, 32, 32), "stem_widths": (8, 8)}
EXPORT = dict.fromkeys(("images", "labels", "tolerance", "custom_module"))
EXPORT |= {"precision": "float32", "overwrite": False}
PART = np.eye(4, 3), [0, 1, 0, 1]
PARTS = {"model": None, "train": PART, "test": PART}
# {name: why it is not called with bad values}
NOT_CALLED = dict.fromkeys(
    ("BrokenImages", "LoadReport", "PatchLayout", "PseudoLabels", "Reconstruction"), "functions of the package make it"
)
NOT_CALLED |= dict.fromkeys(("ParityError", "WeightsMismatchError"), "an error")
NOT_CALLED |= dict.fromkeys(("ReduceMetrics", "num_processes", "process_id"), "it has no arguments")
NOT_CALLED["FamilyModel"] = "builders call it"
# The named builders have the arguments of their family.
NOT_CALLED |= dict.fromkeys(builders.__all__, "it calls the builder of its family")
# All arguments of these may be None, which stands for the default.
BUILDERS = ("BiT", "CoAtNet", "EfficientNet", "VTResNet", "ViT")


@pytest.fixture(scope="module")
def valid(tmp_path_factory):
    """Returns {argument: value} for arguments that functions require, and {function: {argument: value}}."""
    folder, model, other = tmp_path_factory.mktemp("given"), build(), build()
    keras_vit.save_weights(model, folder / "tiny.npz")
    other.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    for image in [folder / "classes" / name / f"{i}.png" for name in ("cat", "dog") for i in range(2)]:
        image.parent.mkdir(parents=True, exist_ok=True)
        keras.utils.save_img(image, np.zeros((20, 20, 3)))
    dataset = data.from_directory(folder / "classes", image_size=16, batch_size=2)
    new, recipe = folder / "new", training.RECIPES["finetune_pets"].replace({"weights": None})
    usual = {"model": model, "backbone": model, "student": model, "teacher": other, "num_classes": 2}
    usual |= {"images": IMAGES, "data": (IMAGES, np.array([0, 1])), "log_dir": new, "path": new}
    usual |= {"logits": EYE, "teacher_logits": EYE, "source": dataset.source, "out": new, "alpha": 0.5}
    usual |= dict.fromkeys(("labelled", "pseudo_labelled"), dataset)
    usual |= dict.fromkeys(("unlabelled", "augmented"), dataset.map(lambda images, labels: images))
    usual |= {"base_loss": 1.0, "distillation_loss": 1.0}
    usual |= {"mlp_dim": 4, "num_heads": 2, "hidden_dim": 4, "patch_size": 4, "rate": 0.5, "image": PICTURE, "k": 2}
    usual |= {"frame": {"path": [str(image)] * 4, "label": [0, 1, 0, 1]}, "matrix": [[1, 0], [0, 1]], "rank": 2}
    usual["mesh"] = keras.distribution.DeviceMesh((1, 1), ["data", "model"], ["cpu:0"])
    usual |= {"folder": new, "optimizer": "sgd", "policy": data.Policy(), "class_names": ["a", "b"]}
    exported = {"litert": "a.tflite", "onnx": "a.onnx", "openvino": "a.xml", "torch_export": "a.pt2"}
    special = {
        **{name: {"path": folder / path, **EXPORT} for name, path in exported.items()},
        "BiT": {"variant": "R50x1", **SHARED, "stages": (1,), "pool_padding": "lowest"},
        "EfficientNetConfig": {"widths": (8,) * 9, "repeats": (1,) * 7},
        "RandAugment": {"num_operations": 1, "magnitude": 5},
        "Recipe": {**dict.fromkeys(("name", "source", "cost", "expected"), "x"), "steps": 5},
        "RotaryEmbedding": {"kind": "dinov3", "head_dim": 8},
        "VTResNetConfig": {"stages": (1, 1, 1, 1), "bottleneck": False, "num_modules": 1},
        "ViTConfig": {name: value for name, value in TINY.items() if name != "head_init"},
        "attention_overlay": {"images": PICTURE[None], "attention": MAP},
        "decode_predictions": {"predictions": np.eye(5)[:2], "model": model},
        **{name: {"mesh": usual["mesh"]} for name in ("data_parallel", "fsdp")},
        "fit": {"model": other, "epochs": 1, "resume": new, "save_every": 1, "keep": 1, "seed": 0, "allow": ()},
        "grad_cam": {"model": keras_vit.BiT("R50x1", **SHARED, stages=(1,)), "images": np.zeros((1, 32, 32, 3))},
        "imagenet_real_accuracy": {"model": model, "labels": [[0], [1]]},
        "initialize": {"coordinator": "localhost:1", "num_processes": 1, "process_id": 0},
        "launch": {"command": ["train"], "num_processes": 2},
        "noisy_student": {"students": [build], "train": print},
        "plot_attention_distance": {"distance": np.ones((2, 3))},
        "plot_attention_maps": {"attention": np.ones((1, 5, 5)) / 5},
        "plot_attention_rollout": {"images": PICTURE[None], "attention": MAP},
        "plot_embedding_filters": {"filters": np.zeros((2, 4, 4, 3))},
        "plot_position_similarity": {"similarity": np.ones((2, 2, 2, 2))},
        "plot_predictions": {"images": PICTURE[None], "labels": [0], "probabilities": EYE[:1]},
        "plot_reconstructions": {"reconstruction": pretraining.Reconstruction(IMAGES, IMAGES, IMAGES)},
        "relabelled": {"labels": semi_supervised.pseudo_labels(model, IMAGES, threshold=0.0, verbose=0)},
        "run": {"recipe": recipe, "make_dataset": data.splits(folder / "classes")},
        "token_attention_maps": {"model": keras_vit.VTResNet("R18", **SHARED), "images": np.zeros((1, 32, 32, 3))},
        "top_k_accuracy": {"predictions": EYE, "labels": [0, 1], "k": 1},
        "vtab_mean": {"accuracies": {"a": 0.5}, "tasks": {"a": "natural"}},
        "write_report": {"images": [image], "path": folder / "new.html"},
    }
    special |= {"few_shot_accuracy": {**PARTS, "shots": 1}, "knn_accuracy": {**PARTS, "k": 1}}
    special |= {"linear_probe_accuracy": PARTS, "BiTConfig": {"stages": (1,), "width_factor": 1.0}}
    special |= {"CoAtNet": {"variant": "0", **SHARED, **COATNET}, "CoAtNetConfig": COATNET}
    special |= {"Crop": {"image_size": (8, 8)}, "EfficientNet": {"variant": "B0", **SHARED}}
    special |= {"LayerDecay": {"multipliers": {"head": 1.0}}, "Source": vars(dataset.source)}
    special |= {"TokenPooling": {"method": "gap"}, "VTResNet": {"variant": "R18", **SHARED}}
    special |= {"ViT": {"variant": "B/16", **TINY}, "WarmupDecay": {"peak": 0.1, "total_steps": 10}}
    special |= {"distributed": {"kind": "data"}, "ensemble": {"members": [EYE, EYE]}, "features": {"blocks": (0, -1)}}
    special |= {"from_directory": {"path": folder / "classes"}, "from_pretrained": {"path": folder / "tiny.npz"}}
    special |= {"load": {"name": "cifar10", "split": "train"}, "load_weights": {"path": folder / "tiny.npz"}}
    special |= {"plot_history": {"history": {"loss": [1.0]}}, "plot_token_attention": {"attention": MAP}}
    special |= {"predict": {"data": IMAGES}, "predict_images": {"images": image}, "preflight": {"model": other}}
    special |= {"preprocess_input": {"x": IMAGES}, "read_image": {"path": image}}
    special |= {"resize_folder": {"path": folder / "classes"}, "saved_model": {"path": folder / "1"}}
    special |= {"splits": {"data": folder / "classes"}}
    return usual, special


MODULES = [keras_vit, *(each for name in keras_vit.__all__ if inspect.ismodule(each := getattr(keras_vit, name)))]
LISTED = ((getattr(module, name), name) for module in MODULES for name in module.__all__ if name not in NOT_CALLED)
PUBLIC = {function: name for function, name in LISTED if callable(function)}


def bad_calls(function, name, valid):
    """Yields (argument, all arguments) of bad calls of a function."""
    usual, special = valid
    parameters = inspect.signature(function).parameters.values()
    defaults = {
        each.name: each.default for each in parameters if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)
    }
    required = [argument for argument, default in defaults.items() if default is inspect.Parameter.empty]
    given = {argument: usual[argument] for argument in required if argument in usual} | special.get(name, {})
    for argument in dict.fromkeys((*given, *defaults)):
        default = defaults.get(argument, given.get(argument))
        kind = "bool" if isinstance(default, bool) else KIND_OF.get(f"{name}.{argument}") or KIND_OF[argument]
        taken = TAKEN.get(f"{name}.{argument}") or TAKEN.get(argument, ())
        for value in (*BAD[kind], *([] if default is None or name in BUILDERS else [None])):
            if any(type(value) is type(each) and repr(value) == repr(each) for each in taken):
                continue
            yield argument, {**given, argument: value}


def failures(function, name, valid):
    """Returns the bad calls that raise no error of ours, or an error that does not name the argument."""
    failed = []
    for argument, given in bad_calls(function, name, valid):
        call = f"{name}({argument}={given[argument]!r:.40})"
        try:
            result = function(**given)
            # A context manager checks its arguments when it is entered.
            with result if hasattr(result, "__enter__") else contextlib.nullcontext():
                failed.append(f"{call} is accepted")
        except (ValueError, TypeError) as error:
            if not re.search(rf"\b{argument}\b", str(error)):
                failed.append(f"{call} does not name it: {type(error).__name__}: {error!s:.150}")
        except Exception as error:
            failed.append(f"{call} raises a foreign {type(error).__name__}: {error!s:.100}")
    return failed


@pytest.mark.parametrize("function", PUBLIC)
def test_bad_value_is_refused_by_name(function, valid):
    assert not failures(function, PUBLIC[function], valid)


def test_bad_values_cover_all_public_names(valid):
    assert {name for module in MODULES for name in module.__all__} >= set(NOT_CALLED)
    assert sum(len([*bad_calls(function, name, valid)]) for function, name in PUBLIC.items()) >= 1200
