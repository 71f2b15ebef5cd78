"""Training recipes of the papers and of this package."""

from keras_vit import arguments
from keras_vit.images.constants import IMAGENET_PREPROCESSING
from keras_vit.training.settings import Recipe

_VIT = "arXiv 2010.11929, appendix B.1, table"
_IMAGENET = {"dataset": "imagenet2012", "test_split": "validation"}
_IMAGENET21K = {"dataset": "imagenet21k", "train_split": "full[51200:]", "test_split": "full[:25600]"}
_PRETRAIN = {
    "model": {"dropout_rate": 0.1, "representation_size": 768},
    "batch_size": 4096,
    "optimizer": "adam",
    "warmup_steps": 10_000,
}
# The other settings are defaults of `Recipe`: batch size 512, SGD, cosine decay, no weight decay, clipnorm 1.
_FINETUNE = {
    "source": f"{_VIT} 4; the warm-up, a tenth of the steps, is ours",
    "cost": "not published",
    "image_size": 384,
    "weights": "imagenet21k",
    "crop": "finetune",
    "learning_rate": 0.01,
    "sweep": (0.001, 0.003, 0.01, 0.03),
    "steps": 500,
    "warmup_steps": 50,
}
# The paper's learning rate is 5e-4 * batch size / 512.
_DEIT = _IMAGENET | {
    "source": "arXiv 2012.12877, table 9; accuracy from table 5, cost from section 6",
    "cost": "under 3 days of 4 GPUs",
    "policy": "deit",
    "model": {"drop_path_rate": 0.1, "preprocessing": IMAGENET_PREPROCESSING},
    "batch_size": 1024,
    "epochs": 300,
    "optimizer": "adamw",
    "learning_rate": 1e-3,
    "weight_decay": 0.05,
    "clip": None,
    "warmup_epochs": 5,
    "crop_scale": 0.08,
}
_COATNET = _IMAGENET | {
    "source": "arXiv 2106.04803, table 10; accuracy from table 4. The paper's learning rate ends at 1e-5, ours at 0",
    "cost": "not published",
    "family": "coatnet",
    "policy": "coatnet",
    "label_smoothing": 0.1,
    "batch_size": 4096,
    "epochs": 300,
    "optimizer": "adamw",
    "learning_rate": 1e-3,
    "weight_decay": 0.05,
    "warmup_steps": 10_000,
}
_SCRATCH = {
    "source": "keras_vit",
    "variant": "R+Ti/16",
    "batch_size": 64,
    "optimizer": "adam",
    "learning_rate": 1e-3,
    "weight_decay": 0.1,
    "warmup_epochs": 0.5,
}
_SMALL = {"width_factor": 0.5, "patch_size": 1, "pooling": "gap", "position_embedding": "sincos2d"}
_FLOWERS17 = {
    "cost": "8 minutes of 2 CPU cores (TensorFlow), from ViT-B_16-224.npz",
    "expected": "test accuracy 0.9985",
    "dataset": "flowers17",
    "holdout": 0.5,
    "image_size": 224,
    "weights": "imagenet2012",
    "dtype": "mixed_bfloat16",
    "crop": "finetune",
    "batch_size": 32,
    "epochs": 2,
    "warmup_steps": 10,
}
_SETTINGS = {
    "finetune": _FINETUNE
    | {
        "source": f"{_VIT} 4, for your own images on one GPU. The 8 epochs are from ImageNet, and the minimum of 500 "
        "steps is from Pets and Flowers. Resolution 224, the batch size and the warm-up (10% of the steps) are ours",
        "cost": "not measured",
        "expected": "not measured; for images of your own",
        "image_size": 224,
        "batch_size": None,
        "steps": None,
        "epochs": 8.0,
        "min_steps": 500,
        "warmup_steps": 0,
        "warmup_percent": 10.0,
    },
    "pretrain_imagenet21k": _PRETRAIN
    | _IMAGENET21K
    | {
        "source": f"{_VIT} 3, and section 4.1; weight decay 0.1 is from the section, the table has 0.03; "
        "the data is not in TFDS: pass a folder, or a TFDS dataset named imagenet21k with one label per image",
        "cost": "230 TPUv3-core-days for L/16 (table 2)",
        "expected": "ImageNet top-1 0.8397 for B/16, fine-tuned at 384 (table 5)",
        "epochs": 90,
        "learning_rate": 1e-3,
        "weight_decay": 0.1,
        "clip": None,
        "decay": "linear",
    },
    "pretrain_imagenet1k": _PRETRAIN
    | _IMAGENET
    | {
        "source": f"{_VIT} 3",
        "cost": "not published",
        "expected": "top-1 0.7791 for B/16, fine-tuned at 384 (table 5)",
        "epochs": 300,
        "learning_rate": 3e-3,
        "weight_decay": 0.3,
    },
    "finetune_imagenet": _FINETUNE
    | _IMAGENET
    | {
        "source": f"{_VIT} 4; warm-up as in the official code",
        "cost": "6.5 hours on A100 (official repository; the number of GPUs is unknown)",
        "expected": "top-1 0.8397 for B/16 (table 5)",
        "learning_rate": 0.03,
        "sweep": (0.003, 0.01, 0.03, 0.06),
        "steps": 20_000,
        "warmup_steps": 500,
    },
    "finetune_cifar": _FINETUNE
    | {
        "source": f"{_VIT} 4; learning rate and warm-up as in the official code",
        "cost": "2.2 hours on A100 (official repository; the number of GPUs is unknown)",
        "expected": "accuracy 0.9895 for B/16 (table 5); on cifar100 0.9167",
        "dataset": "cifar10",
        "steps": 10_000,
        "warmup_steps": 500,
    },
    "finetune_pets": _FINETUNE | {"expected": "accuracy 0.9443 for B/16 (table 5)", "dataset": "oxford_iiit_pet"},
    "finetune_flowers": _FINETUNE
    | {"expected": "accuracy 0.9938 for B/16 on oxford_flowers102 (table 5)", "dataset": "oxford_flowers102"},
    "finetune_vtab": _FINETUNE
    | {
        "source": f"{_VIT} 4; one run for each task, such as vtab/caltech101; the warm-up (10% of the steps) is ours",
        "expected": "mean accuracy 0.7272 over the 19 tasks for L/16 (table 2)",
        "dataset": "vtab/caltech101",
        "train_split": "train800val200",
        "crop": "eval",
        "flip": False,
        "steps": 2_500,
        "sweep": (),
        "warmup_steps": 250,
    },
    "deit_tiny": _DEIT | {"variant": "Ti/16", "expected": "top-1 0.722"},
    "deit_small": _DEIT | {"variant": "S/16", "expected": "top-1 0.798"},
    "deit_base": _DEIT | {"cost": "53 hours on one node, 37 on two", "expected": "top-1 0.818"},
    "coatnet_0": _COATNET | {"variant": "0", "model": {"drop_path_rate": 0.2}, "expected": "top-1 0.816"},
    "coatnet_1": _COATNET | {"variant": "1", "model": {"drop_path_rate": 0.3}, "expected": "top-1 0.833"},
    "coatnet_2": _COATNET | {"variant": "2", "model": {"drop_path_rate": 0.5}, "expected": "top-1 0.841"},
    "coatnet_3": _COATNET | {"variant": "3", "model": {"drop_path_rate": 0.7}, "expected": "top-1 0.845"},
    "coatnet_imagenet21k": _COATNET
    | _IMAGENET21K
    | {
        "source": "arXiv 2106.04803, table 10. The drop_path_rate of 0.3 is for size 2; use 0.5 for size 3 and 0.7 for "
        "size 4. The table's label smoothing of 1e-4 is left out. The data is not in TFDS: pass a folder",
        "expected": "ImageNet top-1 0.871 for size 2, fine-tuned at 224 (table 4)",
        "variant": "2",
        "model": {"drop_path_rate": 0.3},
        "policy": "none",
        "label_smoothing": 0.0,
        "loss": "sigmoid",
        "epochs": 90,
        "weight_decay": 0.01,
        "decay": "linear",
        "warmup_steps": 0,
        "warmup_epochs": 5,
    },
    "coatnet_finetune": _COATNET
    | {
        "source": "arXiv 2106.04803, table 10. Pass a CoAtNet trained at 224 as weights; the drop_path_rate is as in "
        "its pre-training",
        "expected": "top-1 0.839 for size 0, at 384 (table 4)",
        "image_size": 384,
        "variant": "0",
        "model": {"drop_path_rate": 0.2},
        "batch_size": 512,
        "epochs": 30,
        "learning_rate": 5e-5,
        "weight_decay": 1e-8,
        "decay": "constant",
        "warmup_steps": 0,
        "ema": 0.9999,
    },
    "scratch_cifar10": _SCRATCH
    | {
        "source": "keras_vit; patch sizes as in the paper's tutorials for 32 x 32 pixels, which also use B/3 and B/2",
        "cost": "not measured",
        "expected": "not measured",
        "dataset": "cifar10",
        "variant": "B/4",
        "image_size": 32,
        "model": {"drop_path_rate": 0.1},
        "crop": "pad",
        "policy": "light2",
        "label_smoothing": 0.1,
        "batch_size": 512,
        "epochs": 200,
        "warmup_epochs": 10,
    },
    # The results and costs of the following recipes were measured for keras_vit (see benchmarks/results).
    "scratch_fashion_mnist": _SCRATCH
    | {
        "cost": "16 minutes of 2 CPU cores (TensorFlow, --set dtype=mixed_bfloat16)",
        "expected": "test accuracy 0.9035",
        "dataset": "fashion_mnist",
        "image_size": 28,
        "model": _SMALL | {"in_channels": 1, "hidden_dim": 128, "num_layers": 4, "num_heads": 4, "mlp_dim": 256},
        "crop": "eval",
        "epochs": 12,
        "learning_rate": 1.5e-3,
    },
    "scratch_cifar10_hybrid": _SCRATCH
    | {
        "source": "keras_vit; a small hybrid (arXiv 2010.11929, section 3.1) for a CPU",
        "cost": "98 minutes of 2 CPU cores (TensorFlow, --set dtype=mixed_bfloat16)",
        "expected": "test accuracy 0.8334",
        "dataset": "cifar10",
        "image_size": 64,
        "model": _SMALL | {"stages": (1, 1), "num_layers": 2, "mlp_dim": 384},
        "crop": "pad",
        "label_smoothing": 0.1,
        "epochs": 30,
    },
    "finetune_flowers17": _FLOWERS17
    | {
        "source": "keras_vit; the paper's fine-tuning, shorter and at 224, for 40 images a class",
        "learning_rate": 0.01,
    },
    "lora_flowers17": _FLOWERS17
    | {
        "source": "keras_vit; LoRA (arXiv 2106.09685) on the data of finetune_flowers17",
        "train": "lora",
        "optimizer": "adamw",
        "learning_rate": 1e-3,
    },
}


class _Recipes(dict):
    """A dict from names to recipes. An unknown name raises a ValueError that lists all names."""

    def __missing__(self, name):
        meant = arguments.nearest(name, self)
        raise ValueError(f"Expected a recipe: {', '.join(self)}. Received: {name!r}{meant}")


RECIPES = _Recipes({name: Recipe(name, **settings) for name, settings in _SETTINGS.items()})
"""The recipes by name, as in the list of `keras-vit recipes`. An unknown name raises a ValueError."""
