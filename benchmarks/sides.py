"""Cases, entrants, and the sides that run a model.

`prepare`, untimed, converts NumPy arrays to a side's inputs. `forward` and `train` run `steps` steps and wait for them.
They return the logits, or a loss.
"""

import dataclasses
from itertools import repeat

import keras
import numpy as np

import keras_vit
from keras_vit.models.vit.variants import decode_variant


@dataclasses.dataclass(frozen=True)
class Case:
    """Settings shared by all sides.

    `model` is a variant with an optional image size, such as "B/16@384". `activation` is "gelu" (exact, as in
    keras-hub, timm and transformers) or "gelu_tanh" (the official code). `optimizer` is "sgd" (momentum 0.9) or
    "adamw". `device` is for torch modules outside Keras.
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
    """A model implementation and its options.

    `peer` is a key of `MAKERS` in peers.py. `dtype` is a Keras dtype policy: "float32", "bfloat16", with weights in it,
    or "mixed_bfloat16", which for other torch modules is autocast. `compiled` is for torch.compile, directly or by
    Keras' `jit_compile=True`. `options` are (name, value) pairs for our builder, except `jit_compile`, which is for
    `model.compile`, and `torch_module`, "eager" or "compiled", which is for `export.torch_module`.
    """

    peer: str
    dtype: str = "float32"
    compiled: bool = False
    options: tuple = ()

    @property
    def compute_dtype(self):
        return self.dtype.removeprefix("mixed_")

    @property
    def label(self):
        words = [self.peer, "compiled" if self.compiled else "", self.options_label]
        return " ".join(word for word in words if word)

    @property
    def options_label(self):
        return ",".join(f"{name}={value}" for name, value in self.options)


class KerasSide:
    """A Keras model. It runs one step by predict_on_batch or train_on_batch, several by `predict` or `fit`."""

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
            jit_compile=jit_compile,
        )

    def prepare(self, images, labels):
        return keras.ops.convert_to_tensor(images), keras.ops.convert_to_tensor(labels)

    def forward(self, images, labels, steps=1):
        if steps > 1:
            return self.model.predict((batch for batch in repeat((images,))), steps=steps, verbose=0)
        return np.asarray(self.model.predict_on_batch(images), "float32")

    def train(self, images, labels, steps=1):
        if steps > 1:
            batches = (batch for batch in repeat((images, labels)))
            return self.model.fit(batches, steps_per_epoch=steps, verbose=0).history["loss"][-1]
        # The loss is a NumPy number, so the step has finished.
        return float(self.model.train_on_batch(images, labels, return_dict=True)["loss"])


class ModuleSide:
    """The forward pass of our model as the module of `export.torch_module`."""

    def __init__(self, model, compiled):
        import torch

        self.torch = torch
        self.num_parameters = model.count_params()
        module = keras_vit.export.torch_module(model)
        self.call = torch.compile(module, dynamic=False) if compiled else module

    def prepare(self, images, labels):
        return self.torch.tensor(images), self.torch.tensor(labels)

    def forward(self, images, labels):
        with self.torch.inference_mode():
            return self.call(images).float().numpy()


class TorchSide:
    """A torch module."""

    def __init__(self, module, entrant, case, task):
        import torch

        self.torch = torch
        self.num_parameters = sum(p.numel() for p in module.parameters())
        self.device = case.device
        self.is_mixed = entrant.dtype.startswith("mixed_")
        self.inputs_dtype = torch.float32 if self.is_mixed else getattr(torch, entrant.dtype)
        self.module = module.to(self.device, self.inputs_dtype)
        # Compile for static shapes. By default, a second batch size would trigger a compilation for dynamic shapes.
        self.call = torch.compile(self.module, dynamic=False) if entrant.compiled else self.module
        # A training side's forward pass is not timed.
        self.call_forward = self.call if task == "forward" else self.module
        optimizers = {
            "sgd": lambda p: torch.optim.SGD(p, lr=1e-3, momentum=0.9),
            "adamw": lambda p: torch.optim.AdamW(p, lr=1e-4, fused=True),
        }
        self.optimizer = optimizers[case.optimizer](module.parameters())

    def prepare(self, images, labels):
        images = self.torch.tensor(images).to(self.device, self.inputs_dtype).permute(0, 3, 1, 2)
        # Convolutions are faster with channels last on a GPU, channels first on a CPU.
        return images.contiguous() if self.device == "cpu" else images, self.torch.tensor(labels).to(self.device)

    def _logits(self, call, images):
        with self.torch.autocast(self.device, dtype=self.torch.bfloat16, enabled=self.is_mixed):
            logits = call(images)
        return getattr(logits, "logits", logits)

    def forward(self, images, labels, steps=1):
        self.module.eval()
        with self.torch.inference_mode():
            logits = [self._logits(self.call_forward, images).float() for _ in range(steps)]
            return np.concatenate([each.cpu().numpy() for each in logits])

    def train(self, images, labels, steps=1):
        self.module.train()
        for _ in range(steps):
            self.optimizer.zero_grad(set_to_none=True)
            logits = self._logits(self.call, images)
            loss = self.torch.nn.functional.cross_entropy(logits.float(), labels)
            loss.backward()
            self.optimizer.step()
        return loss.item()


class FlaxSide:
    """big_vision's ViT, with a jitted training step."""

    def __init__(self, module, parameters, case):
        import jax
        import optax

        # Our model also has a position embedding for the class token.
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
            # Ours is a token plus a position that both take this step. (AdamW's decay doubles too: 4e-7 of the value.)
            updates["params"]["cls"] *= 2
            return optax.apply_updates(parameters, updates), state, value

        self._step = jax.jit(step, donate_argnums=(0, 1))
        self._forward = jax.jit(logits)

    def prepare(self, images, labels):
        import jax

        return jax.device_put(images), jax.device_put(labels)

    def forward(self, images, labels, steps=1):
        logits = [self._forward(self.parameters, images) for _ in range(steps)]
        return np.concatenate([np.asarray(each) for each in logits])

    def train(self, images, labels, steps=1):
        if self.state is None:
            self.state = self._start(self.parameters)
        for _ in range(steps):
            self.parameters, self.state, value = self._step(self.parameters, self.state, images, labels)
        return float(value)
