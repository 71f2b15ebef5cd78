import functools

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.distillation import Distiller
from keras_vit.models import forward
from keras_vit.pretraining import MAE
from keras_vit.training import SAM, compile_forward
from keras_vit.training.fitting import compile_long_run
from tests.errors import refuses
from tests.models.test_forward import bit, coatnet, efficientnet, hybrid, vt_resnet
from tests.tiny import build, dtype_policy

LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


@pytest.fixture
def without_inductor(monkeypatch):
    """Traces models and their gradients without compiling C++, which takes a minute for each."""
    import torch

    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="aot_eager"))
    monkeypatch.setattr(forward, "why_not", lambda model: None)


def with_own_head(**rates):
    vit = build(num_layers=1, **rates)
    return keras.Model(vit.input, keras.layers.Dense(5)(vit.get_layer("norm").output[:, 0]))


def below_augmentation():
    flip = keras.layers.RandomFlip(data_format="channels_last")
    return keras.Sequential([keras.Input((16, 16, 3)), flip, build(num_classes=0), keras.layers.Dense(5)])


def with_lora(**rates):
    model = build(num_layers=1, **rates)
    keras_vit.training.enable_lora(model, 2)
    return model


def losses(make, jit_compile, epochs=5):
    keras.utils.set_random_seed(0)
    model = make()
    model.compile(keras.optimizers.SGD(0.05), None if isinstance(model, MAE) else LOSS)
    if jit_compile:
        compile_forward(model)
    images = np.random.default_rng(0).normal(size=(8, *getattr(model, "plain_model", model).input_shape[1:]))
    data = (images,) if isinstance(model, MAE) else (images, np.arange(8) % 5)
    return model.fit(*data, batch_size=8, epochs=epochs, shuffle=False, verbose=0).history["loss"]


# Tracing takes seconds for each layer, so the models are as small as their families allow.
CASES = {
    "vit": functools.partial(build, num_layers=1),
    "hybrid": functools.partial(hybrid.build, stages=(1,)),
    "bit": functools.partial(bit.build, stages=(1,)),
    "coatnet": functools.partial(coatnet.build, depths=(1, 1, 1, 1)),
    "efficientnet": functools.partial(efficientnet.build, repeats=(1,) * 7),
    "vt_resnet": functools.partial(vt_resnet.build, num_modules=1),
    "own head": with_own_head,
    "SAM": lambda **rates: SAM(build(num_layers=1, **rates)),
    "Distiller": lambda **rates: Distiller(build(distillation_token=True, **rates), build(num_layers=1)),
    "MAE": lambda **rates: MAE(build(num_classes=0, num_layers=1, **rates), decoder_num_layers=1, seed=0),
    "LoRA": with_lora,
}
ALL = ("dropout_rate", "attention_dropout_rate", "drop_path_rate")
RATES = {**dict.fromkeys(CASES, ALL), **dict.fromkeys(("coatnet", "efficientnet", "vt_resnet"), ALL[::2]), "bit": ()}


def test_compiled_fit_traces_no_inference_of_shapes(without_inductor):
    from torch._dynamo.utils import counters

    counters.clear()
    losses(build, True, epochs=1)
    # Keras infers shapes by a call before the first step.
    assert counters["stats"]["calls_captured"] and not counters["graph_break"]


@pytest.mark.long
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(
    "policy, rate, steps, tolerance",
    [("float32", 0, 5, 1e-5), ("mixed_bfloat16", 0, 5, 2e-2), ("float32", 0.2, 50, 0.05)],
)
def test_compiled_training_equals_eager_training(case, policy, rate, steps, tolerance, without_inductor):
    from torch._dynamo.utils import counters

    counters.clear()
    make = functools.partial(CASES[case], **dict.fromkeys(RATES[case], rate))
    with dtype_policy(policy):
        eager, compiled = (losses(make, jit_compile, steps) for jit_compile in (False, True))
    # Random numbers differ with dropout, so only the mean loss is equal.
    compared = np.mean if rate else np.asarray
    np.testing.assert_allclose(compared(compiled), compared(eager), rtol=tolerance)
    assert eager[-1] != eager[0]
    assert counters["stats"]["unique_graphs"] == 1 and not counters["graph_break"]


@pytest.mark.parametrize("make, owner", [(build, lambda m: m), (below_augmentation, lambda m: m.layers[1])])
def test_compile_forward_compiles_the_part_of_the_package(make, owner, without_inductor):
    model = make()
    compile_forward(model)
    compiled = [each for each in (model, *model.layers) if "call" in vars(each)]
    assert compiled == [owner(model)]


def test_compile_chooses_the_forward_pass_by_jit_compile(monkeypatch, tmp_path):
    import torch

    monkeypatch.setattr(torch, "compile", lambda function, **options: functools.partial(function))
    monkeypatch.setattr(forward, "why_not", lambda model: None)
    model = build()
    for jit_compile, compiled in (("auto", False), (True, True), ("auto", True), (False, False), (True, True)):
        model.compile("adam", LOSS, jit_compile=jit_compile)
        assert ("call" in vars(model)) is compiled and model.jit_compile is False
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert "call" in vars(loaded) and isinstance(loaded.optimizer, keras.optimizers.Adam)


def test_impossible_compilation_is_an_error_with_a_remedy(monkeypatch):
    monkeypatch.setattr(forward, "why_not", lambda model: "no g++")
    with pytest.raises(RuntimeError, match=r"Received: no g\+\+. Install a C\+\+ compiler"):
        build().compile("adam", LOSS, jit_compile=True)
    refuses("layers of keras_vit", compile_forward, keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)]))


def test_why_not_is_none_or_the_reason(monkeypatch):
    import torch

    def broken(*args, **kwargs):
        raise RuntimeError("no compiler\nmore")

    monkeypatch.setattr(torch, "compile", broken)
    assert forward._why_not.__wrapped__(torch.device("cpu")) == "no compiler"
    monkeypatch.setattr(torch, "compile", lambda function, **options: function)
    assert forward._why_not.__wrapped__(torch.device("cpu")) is None


def test_long_run_compiles_on_a_gpu_or_prints_the_reason(monkeypatch, capsys):
    from types import SimpleNamespace

    values = [SimpleNamespace(value=SimpleNamespace(device=SimpleNamespace(type=kind))) for kind in ("cuda", "cpu")]
    (model, on_cpu), compiled = (SimpleNamespace(variables=[value]) for value in values), []
    monkeypatch.setattr(forward, "set_compiled", compiled.append)
    monkeypatch.setattr(forward, "why_not", lambda model: "no Triton")
    compile_long_run(model, 200)
    assert not capsys.readouterr().out
    compile_long_run(model, 201)
    assert "without compilation: no Triton. Install" in capsys.readouterr().out and not compiled
    monkeypatch.setattr(forward, "why_not", lambda model: None)
    compile_long_run(on_cpu, 201)
    assert not compiled
    compile_long_run(model, 201)
    assert compiled == [model]


@pytest.mark.backends("tensorflow", "jax")
def test_compile_forward_names_the_argument_elsewhere():
    refuses("Expected the PyTorch backend.*jit_compile=True", compile_forward, build(), error=RuntimeError)
