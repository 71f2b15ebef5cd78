import json
import re
import sys
from pathlib import Path

import pytest

import keras_vit
from keras_vit.weights import hub as rooms
from tests.tiny import TEST_VIT, build, randomize
from tests.weights.helpers import check_not_saved, check_refused, check_same
from tests.weights.servers import HubServer, running

huggingface_hub = pytest.importorskip("huggingface_hub", reason="it is the client of the hub")
constants = pytest.importorskip("huggingface_hub.constants")

TINY = "hf://user/tiny"
GATED = "it is gated. Accept its conditions at .*/user/tiny, then log in with .*HF_TOKEN"
REFUSALS_OF_HUB_GIVE_ADVICE = [
    ("GET", 401, "GatedRepo", PermissionError, GATED),
    # The repository can be listed, but its files are gated.
    ("(GET|HEAD) /user/tiny/resolve", 403, "GatedRepo", PermissionError, "it is gated"),
    ("GET", 401, "RepoNotFound", FileNotFoundError, "there is no repository .*user/tiny. If it is private, log in"),
    ("GET", 403, None, PermissionError, "the hub refused access .403."),
]


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """Replaces huggingface.co by a local server, with an empty cache."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.delenv("HF_TOKEN", raising=False)
    with running(HubServer) as server:
        template = server.url + "/{repo_id}/resolve/{revision}/{filename}"
        # The client reads the environment only at import.
        monkeypatch.setattr(constants, "ENDPOINT", server.url)
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        # The server does not implement the Xet protocol.
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        huggingface_hub.close_session()
        yield server
        huggingface_hub.close_session()


@pytest.fixture
def files(tiny, tmp_path):
    """A transformers folder, and further files that must not be downloaded."""
    keras_vit.save_weights(tiny, tmp_path / "folder", format="huggingface")
    extra = {"README.md": b"# Tiny", "pytorch_model.bin": b"older", "onnx/model.safetensors": b"other"}
    return {path.name: path.read_bytes() for path in (tmp_path / "folder").iterdir()} | extra


def cached(hub):
    paths = Path(constants.HF_HUB_CACHE).glob("models--*/snapshots/*/**/*")
    return sorted(path.name for path in paths if path.is_file())


def test_needed_files_are_downloaded_once(hub, files, tiny):
    hub.put("user/tiny", files)
    check_same(keras_vit.from_pretrained(TINY), tiny)
    assert cached(hub) == ["config.json", "model.safetensors", "preprocessor_config.json"]
    assert len(hub.downloads()) == 3
    check_same(keras_vit.from_pretrained(TINY), tiny)
    assert hub.downloads() == []


def test_token_is_sent(hub, files, monkeypatch):
    hub.put("user/tiny", files)
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    keras_vit.from_pretrained(TINY)
    # Once per process, the client requests its list of programs that call it, without a token.
    sent = {token for request, token in zip(hub.requests, hub.tokens, strict=True) if "harnesses" not in request}
    assert sent == {"Bearer hf_secret"}


def test_cached_model_needs_no_network(hub, files, tiny, monkeypatch, caplog):
    hub.put("user/tiny", files)
    keras_vit.from_pretrained(TINY)
    hub.requests.clear()
    with monkeypatch.context() as offline:
        offline.setattr(constants, "HF_HUB_OFFLINE", True)
        check_same(keras_vit.from_pretrained(TINY), tiny)
        cache = re.escape(repr(constants.HF_HUB_CACHE))
        message = f"Cannot get 'hf://user/other': HF_HUB_OFFLINE is set. .* the folder {cache}"
        check_refused(message, "hf://user/other", error=ConnectionError)
        check_not_saved(f"Cannot upload to '{TINY}': HF_HUB_OFFLINE is set", build(), TINY, error=ConnectionError)
    assert hub.requests == [] and f"{TINY} is read from the cache" in caplog.text
    hub.refusals.append((".*", 503, None))
    check_same(keras_vit.from_pretrained(TINY), tiny)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    check_same(keras_vit.from_pretrained(TINY), tiny)
    check_refused("Cannot get 'hf://user/other'", "hf://user/other", error=ConnectionError)


def test_revision_is_branch_commit_or_pull_request(hub, files, tiny):
    commit = hub.put("user/tiny", files)
    hub.put("user/tiny", {}, "main")
    hub.put("user/tiny", files, "v1.0")
    hub.put("user/tiny", files, "refs/pr/1")
    for revision in (commit, "v1.0", "refs/pr/1"):
        check_same(keras_vit.from_pretrained(f"{TINY}@{revision}"), tiny)
    message = f"Cannot get '{TINY}@v2': .*/user/tiny has no such branch, tag or commit"
    check_refused(message, f"{TINY}@v2", error=FileNotFoundError)


def test_failed_download_leaves_nothing_and_is_resumed(hub, files, tiny, monkeypatch):
    hub.put("user/tiny", files)
    hub.refusals.append(("GET .*model.safetensors", 500, None))
    check_refused(f"(?s)Cannot get '{TINY}': .*500.*try again", TINY, error=ConnectionError)
    assert "model.safetensors" not in cached(hub)
    hub.refusals.append((".*", 503, None))
    check_refused(f"(?s)'{TINY}'.* in the cache \\(the hub cannot be reached", TINY, error=OSError)
    hub.refusals.clear()
    # The client drops an incomplete chunk.
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 1000)
    hub.cuts.append(5000)
    check_same(keras_vit.from_pretrained(TINY), tiny)
    assert hub.ranges == [5000]


def test_damage_in_cache_is_refused(hub, files):
    hub.put("user/tiny", files)
    path = Path(rooms.local_path(TINY), "model.safetensors")
    assert rooms.local_path(TINY) == str(path.parent)
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.resolve().write_bytes(content)
    check_refused("it is damaged or another file: its SHA-256", TINY)


@pytest.mark.parametrize("pattern, status, code, error, what", REFUSALS_OF_HUB_GIVE_ADVICE)
def test_refusals_of_hub_give_advice(hub, files, pattern, status, code, error, what):
    hub.put("user/tiny", files)
    hub.refusals.append((pattern, status, code))
    check_refused(f"Cannot get '{TINY}': {what}", TINY, error=error)


def test_shards_are_downloaded_with_index(hub, files, tiny):
    from safetensors.numpy import load, save

    arrays = load(files.pop("model.safetensors"))
    names = [f"model-0000{i}-of-00002.safetensors" for i in (1, 2)]
    parts = dict(zip(names, (dict(list(arrays.items())[i::2]) for i in (0, 1)), strict=True))
    index = {"weight_map": {key: name for name, part in parts.items() for key in part}}
    del files["pytorch_model.bin"]
    files |= {name: save(part) for name, part in parts.items()}
    hub.put("user/tiny", files | {"model.safetensors.index.json": json.dumps(index).encode()})
    model = keras_vit.from_pretrained(TINY, layer_norm_epsilon=1e-6, preprocessing={"mean": 0.5, "std": 0.5})
    assert {*names, "model.safetensors.index.json"} <= set(cached(hub)) and "onnx" not in str(cached(hub))
    check_same(model, tiny)


def test_file_or_folder_of_repository_can_be_named(hub, files, tiny, tiny_file):
    two = {f"b/{name}": content for name, content in files.items()} | {"a/tiny [1].npz": tiny_file.read_bytes()}
    hub.put("user/tiny", two)
    check_same(keras_vit.from_pretrained(f"{TINY}/a/tiny [1].npz"), tiny)
    assert cached(hub) == ["tiny [1].npz"]
    check_same(keras_vit.from_pretrained(f"{TINY}/b/"), tiny)
    check_same(keras_vit.from_pretrained(f"{TINY}@main/b"), tiny)
    message = f"Received: '{TINY}/c.npz'. The repository's files: a/tiny \\[1\\].npz, b/"
    check_refused(message, f"{TINY}/c.npz", error=FileNotFoundError)


def test_single_weights_file_is_found_several_refused(hub, tiny, tiny_file):
    content = tiny_file.read_bytes()
    hub.put("user/tiny", {"README.md": b"", "tiny.npz": content})
    check_same(keras_vit.from_pretrained(TINY), tiny)
    hub.put("user/tiny", {"a.npz": content, "b.npz": content})
    check_refused(f"one checkpoint, such as {TINY}/a.npz. Received: .* 2 checkpoints: a.npz, b.npz", TINY)
    hub.put("user/tiny", {"README.md": b""})
    check_refused("Expected weights, .* The repository's files: README.md", TINY, error=FileNotFoundError)


def test_hub_name_replaces_path_everywhere(hub, files, tiny, tmp_path, capsys):
    from keras_vit.cli import main

    hub.put("user/tiny", files)
    check_same(build(weights=TINY, activation="gelu_tanh"), tiny)
    other = build()
    keras_vit.load_weights(other, TINY)
    check_same(other, tiny)
    assert main(["weights", "show", TINY]) == 0
    assert main(["weights", "convert", TINY, "hf://user/converted", "--to", "npz"]) == 0
    check_same(keras_vit.from_pretrained("hf://user/converted"), tiny)
    assert main(["weights", "show", "hf://user/none"]) == 1
    assert "there is no repository" in capsys.readouterr().err


def test_keras_file_of_a_hub_is_read(hub, tiny, tmp_path):
    tiny.save(tmp_path / "model.keras")
    hub.put("user/tiny", {"model.keras": (tmp_path / "model.keras").read_bytes()})
    check_same(keras_vit.from_pretrained(TINY), tiny)
    assert keras_vit.from_pretrained(TINY, num_classes=2).config.num_classes == 2


@pytest.fixture
def kaggle(hub, tmp_path, monkeypatch):
    """Replaces kaggle.com by the same server."""
    from kagglesdk import kaggle_env

    monkeypatch.setenv("KAGGLEHUB_CACHE", str(tmp_path / "kaggle"))
    monkeypatch.setenv("KAGGLE_API_ENVIRONMENT", "LOCALHOST")
    monkeypatch.setitem(kaggle_env._env_to_endpoint, kaggle_env.KaggleEnv.LOCAL, hub.url)
    return hub


def test_kaggle_model_is_read_and_cached(kaggle, files, tiny, tiny_file):
    kaggle.put("user/vit/keras/tiny", {name: content for name, content in files.items() if "/" not in name})
    check_same(keras_vit.from_pretrained("kaggle://user/vit/keras/tiny"), tiny)
    kaggle.requests.clear()
    check_same(keras_vit.from_pretrained("kaggle://user/vit/keras/tiny/1"), tiny)
    assert kaggle.requests == []
    kaggle.put("user/vit/keras/two", {"a.npz": tiny_file.read_bytes(), "b.npz": b""})
    check_refused("such as kaggle://user/vit/keras/two/a.npz.* 2 checkpoints", "kaggle://user/vit/keras/two")
    for version in ("", "/1"):
        check_same(keras_vit.from_pretrained(f"kaggle://user/vit/keras/two{version}/a.npz"), tiny)


def test_kaggle_errors_give_advice(kaggle):
    name = "kaggle://user/vit/keras/none"
    check_refused(f"(?s)Cannot get '{name}': 404.*kagglehub.login", name, error=FileNotFoundError)
    kaggle.refusals.append(("POST", 403, None))
    check_refused(f"(?s)Cannot get '{name}': 403.*kagglehub.login", name, error=PermissionError)
    kaggle.refusals[:] = [("POST", 503, None)]
    check_refused(f"(?s)Cannot get '{name}': 503", name, error=ConnectionError)


def test_invalid_name_and_missing_package_are_refused(monkeypatch):
    for name in ("hf://tiny", "hf://", "hf://a/b@", "hf://a/b//c", "kaggle://a/b/c", "hf://a b/c"):
        check_refused("Expected hf://owner/name.@revision..*kaggle://owner/model/framework/", name)
    for package, name in (("huggingface_hub", TINY), ("kagglehub", "kaggle://a/b/keras/c")):
        monkeypatch.setitem(sys.modules, package, None)
        check_refused(f"{package}: pip install {package}", name, error=ImportError)


@pytest.mark.parametrize("format, file", [("huggingface", "config.json"), ("timm", "config.json"), ("npz", "tiny.npz")])
def test_uploaded_model_can_be_read_again(hub, format, file):
    model = randomize(build(**TEST_VIT, class_names=["a", "b", "c", "d", "e"]))
    keras_vit.save_weights(model, TINY, format=format, allow=("activation", "layer_norm_epsilon"))
    files = hub.files("user/tiny")
    assert file in files
    check_same(keras_vit.from_pretrained(TINY), model)
    card = files["README.md"].decode()
    assert f'keras_vit.from_pretrained("{TINY}")' in card and "32 x 32" in card
    assert f"{model.count_params():,}" in card and "pipeline_tag: image-classification" in card
    library = {"huggingface": "transformers", "timm": "timm"}.get(format, "keras-vit")
    assert f"library_name: {library}\n" in card


def test_upload_keeps_card_and_takes_branch_and_file(hub, tiny):
    hub.put("user/tiny", {"README.md": b"mine"})
    hub.put("user/tiny", {"README.md": b"mine"}, "dev")
    keras_vit.save_weights(tiny, f"{TINY}@dev/npz/b.npz")
    assert hub.files("user/tiny") == {"README.md": b"mine"}
    assert sorted(hub.files("user/tiny", "dev")) == ["README.md", "npz/b.npz"]
    assert hub.files("user/tiny", "dev")["README.md"] == b"mine"
    check_same(keras_vit.from_pretrained(f"{TINY}@dev"), tiny)
    check_not_saved("Received: .* contains npz/b.npz, from an older upload", tiny, f"{TINY}@dev")


@pytest.mark.parametrize(
    "old, new, stale", [("timm", "npz", "model.safetensors"), ("huggingface", "timm", "preprocessor_config.json")]
)
def test_upload_that_would_read_older_files_is_refused(hub, old, new, stale):
    allow = ("activation", "layer_norm_epsilon")
    keras_vit.save_weights(build(**TEST_VIT), TINY, format=old, allow=allow)
    before, model = hub.files("user/tiny"), randomize(build(**TEST_VIT))
    message = f"'{TINY}' reads only the uploaded files. Received: .* contains .*{stale}, .* Delete them"
    check_not_saved(message, model, TINY, format=new, allow=allow)
    assert hub.files("user/tiny") == before
    keras_vit.save_weights(model, TINY, format=old, allow=allow)
    check_same(keras_vit.from_pretrained(TINY), model)


def test_failed_upload_names_cause(hub, tiny):
    check_not_saved("cannot store|cannot express", build(pooling="none"), TINY, format="timm")
    assert hub.requests == []
    check_not_saved("Expected a path, or hf://owner/name", tiny, "kaggle://a/b/keras/c")
    check_not_saved("Cannot upload to .*@dev': .* no such branch", tiny, f"{TINY}@dev", error=FileNotFoundError)
    hub.refusals.append(("POST", 401, None))
    with pytest.raises(PermissionError, match=f"Cannot upload to '{TINY}': the hub refused access .401.*hf auth login"):
        keras_vit.save_weights(tiny, TINY)
