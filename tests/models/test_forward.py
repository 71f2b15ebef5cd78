import pytest

from tests import tiny
from tests.models.bit import test_model as bit
from tests.models.coatnet import test_model as coatnet
from tests.models.efficientnet import test_model as efficientnet
from tests.models.vit import test_hybrid as hybrid
from tests.models.vt_resnet import test_model as vt_resnet

LONG = pytest.mark.long
RATES = {"dropout_rate": 0.1, "attention_dropout_rate": 0.1, "drop_path_rate": 0.1, "patch_dropout_rate": 0.3}
CASES = {
    "vit": tiny.build,
    "rates": lambda: tiny.build(**RATES),
    "mixed": lambda: tiny.build(dtype="mixed_bfloat16", **RATES),
    "recomputed": lambda: tiny.build(remat=True, num_layers=1, **RATES),
    "sincos2d": lambda: tiny.build(position_embedding="sincos2d", pooling="gap"),
    "rotary": lambda: tiny.build(rotary_embedding="dinov3"),
    "relative": lambda: tiny.build(position_embedding="relative"),
    "bit": bit.build,
    "hybrid": hybrid.build,
    "coatnet": lambda: coatnet.build(drop_path_rate=0.1),
    "efficientnet": lambda: efficientnet.build(dropout_rate=0.1, drop_path_rate=0.1),
    "vt_resnet": lambda: vt_resnet.build(dropout_rate=0.1, drop_path_rate=0.1),
}


# test_compiled_training_equals_eager_training compiles the training of the other families.
TRAINED = ("rates", "mixed", "recomputed", "sincos2d", "rotary", "relative")
RUNS = [(case, training) for case in CASES for training in (True, False) if case in TRAINED or not training]


@pytest.mark.parametrize(
    "case, training", [pytest.param(*run, marks=[LONG] * (run != ("rates", True))) for run in RUNS]
)
def test_forward_pass_compiles_as_one_graph_once(case, training, request):
    import torch

    if case == "recomputed" and training:
        request.applymarker(pytest.mark.xfail(strict=True, reason="the graph is compiled twice"))
    torch._dynamo.reset()
    model = CASES[case]()
    images = torch.rand(2, *model.input_shape[1:])
    forward = torch.compile(lambda x: model(x, training=training), backend="eager", fullgraph=True)
    for x in (images, images + 1):
        with torch._dynamo.config.patch(error_on_recompile=True):
            outputs = forward(x)
        if not training:
            torch.testing.assert_close(outputs, model(x, training=False))
