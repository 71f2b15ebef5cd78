"""What a benchmark of models runs: a case, an entrant, and the sides, which run a model as its users do.

`prepare`, untimed, makes the arguments of a side's `forward` and `train` from NumPy arrays. peers.py builds the models.
"""

import dataclasses

import keras
import numpy as np

from keras_vit.variants import decode_variant


@dataclasses.dataclass(frozen=True)
class Case:
    """What all sides have in common.

    Args:
        model: String, a variant, or a variant and an image size, as in "B/16@384".
        num_layers: Int, the blocks, or None for the variant's own.
        activation: "gelu" (exact, which keras-hub, timm and transformers have) or "gelu_tanh" (the official code's).
        optimizer: "sgd" (momentum 0.9) or "adamw".
        jit_compile: Bool or "auto", as in `model.compile`, for all Keras sides.
        big_vision: String, the path of big_vision's `models/vit.py`, or None.
        device: String, where the torch modules that are not Keras' run.
    """

    model: str
    num_layers: int | None = None
    activation: str = "gelu"
    optimizer: str = "sgd"
    jit_compile: bool | str = "auto"
    big_vision: str | None = None
    device: str = "cpu"

    @property
    def variant(self):
        return self.model.partition("@")[0]

    @property
    def image_size(self):
        return int(self.model.partition("@")[2] or 224)

    @property
    def sizes(self):
        size, patch_size, _stages = decode_variant(self.variant)
        sizes = {**size._asdict(), "patch_size": patch_size}
        return sizes if self.num_layers is None else {**sizes, "num_layers": self.num_layers}


@dataclasses.dataclass(frozen=True)
class Entrant:
    """Who runs, and how.

    Args:
        peer: String, a key of `MAKERS` of peers.py.
        dtype: "float32" or "bfloat16".
        compiled: Bool, whether torch.compile is asked for: of a module, or through Keras' `jit_compile=True`.
        options: Pairs of a name and a value, more arguments of our builder; `jit_compile` goes to `model.compile`.
    """

    peer: str
    dtype: str = "float32"
    compiled: bool = False
    options: tuple = ()

    @property
    def label(self):
        words = [self.peer, "compiled" if self.compiled else "", self.options_label]
        return " ".join(word for word in words if word)

    @property
    def options_label(self):
        return ",".join(f"{name}={value}" for name, value in self.options)


class KerasSide:
    """A Keras model through predict_on_batch and train_on_batch, whose functions predict and fit use too."""

    def __init__(self, model, case, jit_compile):
        self.model = model
        self.num_parameters = model.count_params()
        optimizers = {
            "sgd": lambda: keras.optimizers.SGD(1e-3, momentum=0.9),
            "adamw": lambda: keras.optimizers.AdamW(1e-4),
        }
        model.compile(
            optimizer=optimizers[case.optimizer](),
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            # keras-hub would add an accuracy of its own otherwise.
            metrics=None,
            jit_compile=jit_compile,
        )

    def prepare(self, images, labels):
        return keras.ops.convert_to_tensor(images), keras.ops.convert_to_tensor(labels)

    def forward(self, images, labels):
        return np.asarray(self.model.predict_on_batch(images), "float32")

    def train(self, images, labels):
        # The loss comes back as a NumPy number, so the step is over.
        return float(self.model.train_on_batch(images, labels, return_dict=True)["loss"])


class TorchSide:
    """A torch module: in bfloat16 throughout for inference, under autocast in training."""

    def __init__(self, module, entrant, case, task):
        import torch

        self.torch = torch
        self.num_parameters = sum(p.numel() for p in module.parameters())
        self.dtype = getattr(torch, entrant.dtype)
        self.device = case.device
        self.inputs_dtype = self.dtype if task == "forward" else torch.float32
        self.module = module.to(self.device, self.inputs_dtype)
        # Static shapes: a second batch size would make it compile for any.
        self.call = torch.compile(self.module, dynamic=False) if entrant.compiled else self.module
        # The outputs of a side that trains are only compared.
        self.call_forward = self.call if task == "forward" else self.module
        optimizers = {
            "sgd": lambda p: torch.optim.SGD(p, lr=1e-3, momentum=0.9),
            "adamw": lambda p: torch.optim.AdamW(p, lr=1e-4, fused=True),
        }
        self.optimizer = optimizers[case.optimizer](module.parameters())

    def prepare(self, images, labels):
        images = self.torch.tensor(images).to(self.device, self.inputs_dtype).permute(0, 3, 1, 2)
        # Convolutions of a GPU want the channels last, those of a CPU the usual order of torch.
        return images.contiguous() if self.device == "cpu" else images, self.torch.tensor(labels).to(self.device)

    def _logits(self, call, images):
        logits = call(images)
        return getattr(logits, "logits", logits)

    def forward(self, images, labels):
        self.module.eval()
        with self.torch.inference_mode():
            return self._logits(self.call_forward, images).float().cpu().numpy()

    def train(self, images, labels):
        self.module.train()
        self.optimizer.zero_grad(set_to_none=True)
        half = self.dtype != self.torch.float32
        with self.torch.autocast(self.device, dtype=self.torch.bfloat16, enabled=half):
            logits = self._logits(self.call, images)
        loss = self.torch.nn.functional.cross_entropy(logits.float(), labels)
        loss.backward()
        self.optimizer.step()
        return loss.item()


class FlaxSide:
    """big_vision's ViT, with one jitted training step."""

    def __init__(self, module, parameters, case):
        import jax
        import optax

        # Its class token has no position of its own.
        self.num_parameters = sum(p.size for p in jax.tree.leaves(parameters)) + module.width
        optimizers = {
            "sgd": lambda: optax.sgd(1e-3, momentum=0.9),
            "adamw": lambda: optax.adamw(1e-4, eps=1e-7, weight_decay=0.004),
        }
        optimizer = optimizers[case.optimizer]()
        self.parameters, self.state = parameters, None
        self._start = optimizer.init

        def logits(parameters, images):
            return module.apply(parameters, images)[0].astype("float32")

        def loss(parameters, images, labels):
            return optax.softmax_cross_entropy_with_integer_labels(logits(parameters, images), labels).mean()

        def step(parameters, state, images, labels):
            value, gradients = jax.value_and_grad(loss)(parameters, images, labels)
            updates, state = optimizer.update(gradients, state, parameters)
            # Ours is a token plus a position, which both move so: their sum takes two such steps. (AdamW's decay of it
            # is doubled too, which is 4e-7 of the value.)
            updates["params"]["cls"] *= 2
            return optax.apply_updates(parameters, updates), state, value

        self._step = jax.jit(step, donate_argnums=(0, 1))
        self._forward = jax.jit(logits)

    def prepare(self, images, labels):
        import jax

        return jax.device_put(images), jax.device_put(labels)

    def forward(self, images, labels):
        return np.asarray(self._forward(self.parameters, images))

    def train(self, images, labels):
        if self.state is None:
            self.state = self._start(self.parameters)
        self.parameters, self.state, value = self._step(self.parameters, self.state, images, labels)
        return float(value)
