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
from tests.tiny import build, dtype_policy

IMAGES = np.random.default_rng(0).normal(size=(8, 16, 16, 3)).astype("float32")
LABELS = np.arange(8) % 5
LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


@pytest.fixture
def without_inductor(monkeypatch):
    """Traces models and their gradients without compiling C++, which takes a minute for each."""
    import torch

    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="aot_eager"))


def with_own_head():
    vit = build()
    return keras.Model(vit.input, keras.layers.Dense(5)(vit.get_layer("norm").output[:, 0]))


def below_augmentation():
    flip = keras.layers.RandomFlip(data_format="channels_last")
    return keras.Sequential([keras.Input((16, 16, 3)), flip, build(num_classes=0), keras.layers.Dense(5)])


def with_lora():
    model = build()
    keras_vit.training.enable_lora(model, 2)
    return model


def distiller():
    return Distiller(build(distillation_token=True), build(num_layers=1))


def losses(make, jit_compile, epochs=5):
    keras.utils.set_random_seed(0)
    model = make()
    model.compile(keras.optimizers.SGD(0.05), None if isinstance(model, MAE) else LOSS)
    if jit_compile:
        compile_forward(model)
    data = (IMAGES,) if isinstance(model, MAE) else (IMAGES, LABELS)
    return model.fit(*data, batch_size=8, epochs=epochs, shuffle=False, verbose=0).history["loss"]


CASES = {
    "vit": build,
    "own head": with_own_head,
    "SAM": lambda: SAM(build()),
    "Distiller": distiller,
    "MAE": lambda: MAE(build(num_classes=0), decoder_num_layers=1, seed=0),
    "LoRA": with_lora,
}


def test_compiled_fit_traces_no_inference_of_shapes(without_inductor):
    from torch._dynamo.utils import counters

    counters.clear()
    losses(build, True, epochs=1)
    # Keras infers shapes by a call before the first step.
    assert counters["stats"]["calls_captured"] and not counters["graph_break"]


@pytest.mark.long
@pytest.mark.parametrize(
    "case, policy", [*((case, "float32") for case in CASES), *((c, "mixed_bfloat16") for c in ("vit", "own head"))]
)
def test_compiled_training_equals_eager_training(case, policy, without_inductor):
    with dtype_policy(policy):
        eager, compiled = (losses(CASES[case], jit_compile) for jit_compile in (False, True))
    np.testing.assert_allclose(compiled, eager, rtol=1e-5 if policy == "float32" else 2e-2)
    assert eager[-1] != eager[0]


@pytest.mark.long
def test_inductor_trains_as_eager():
    eager, compiled = (losses(build, jit_compile) for jit_compile in (False, True))
    np.testing.assert_allclose(compiled, eager, rtol=1e-5)


@pytest.mark.parametrize("make, owner", [(build, lambda m: m), (below_augmentation, lambda m: m.layers[1])])
def test_compile_forward_compiles_the_part_of_the_package(make, owner, monkeypatch, without_inductor):
    monkeypatch.setattr(forward, "why_not", lambda model: None)
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

    weight = SimpleNamespace(value=SimpleNamespace(device=SimpleNamespace(type="cuda")))
    model, compiled = SimpleNamespace(variables=[weight]), []
    monkeypatch.setattr(forward, "set_compiled", compiled.append)
    monkeypatch.setattr(forward, "why_not", lambda model: "no Triton")
    compile_long_run(model, 200)
    assert not capsys.readouterr().out
    compile_long_run(model, 201)
    assert "without compilation: no Triton. Install" in capsys.readouterr().out and not compiled
    monkeypatch.setattr(forward, "why_not", lambda model: None)
    compile_long_run(build(), 201)
    assert not compiled
    compile_long_run(model, 201)
    assert compiled == [model]


@pytest.mark.backends("tensorflow", "jax")
def test_compile_forward_names_the_argument_elsewhere():
    refuses("Expected the PyTorch backend.*jit_compile=True", compile_forward, build(), error=RuntimeError)
