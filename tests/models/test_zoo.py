import functools
import hashlib
import io
import re
import socket
import tempfile
import traceback

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.models import catalog as names
from keras_vit.models import zoo
from keras_vit.weights.download import DownloadError
from tests.errors import not_found, refuses
from tests.weights.helpers import shapes_of
from tests.weights.read.damage import flipped
from tests.weights.servers import Answer, Server, running

GOOGLE = "https://storage.googleapis.com"
AUGREG = f"{GOOGLE}/vit_models/augreg"
META = "https://dl.fbaipublicfiles.com"
ROWS = zoo.list_weights()
B16 = zoo.ROWS.get("ViTB16.imagenet21k")
TI16 = zoo.ROWS.get("ViTTi16.augreg_imagenet2012")
ROW_HAS_PUBLISHED_ADDRESS = [
    ("ViTB16.imagenet21k", f"{GOOGLE}/vit_models/imagenet21k/ViT-B_16.npz"),
    ("ViTB16.imagenet2012_384", f"{GOOGLE}/vit_models/imagenet21k%2Bimagenet2012/ViT-B_16.npz"),
    ("R50ViTB16.imagenet21k", f"{GOOGLE}/vit_models/imagenet21k/R50%2BViT-B_16.npz"),
    ("ViTL32.sam_imagenet2012", f"{GOOGLE}/vit_models/sam/ViT-L_32.npz"),
    (
        "R26ViTS32.augreg_imagenet2012_384",
        f"{AUGREG}/R26_S_32-i21k-300ep-lr_0.001-aug_light1-wd_0.1-do_0.0-sd_0.0"
        "--imagenet2012-steps_20k-lr_0.01-res_384.npz",
    ),
    ("BiTR101x3.imagenet21k_imagenet2012", f"{GOOGLE}/bit_models/BiT-M-R101x3-ILSVRC2012.npz"),
    ("DeiTTi16Distilled.imagenet2012", f"{META}/deit/deit_tiny_distilled_patch16_224-b40b3cf7.pth"),
    ("ViTH14.mae", f"{META}/mae/pretrain/mae_pretrain_vit_huge.pth"),
    ("ViTB16.mae_imagenet2012", f"{META}/mae/finetune/mae_finetuned_vit_base.pth"),
    ("ViTS8.dino", f"{META}/dino/dino_deitsmall8_pretrain/dino_deitsmall8_pretrain.pth"),
    ("DINOv2G14.lvd142m_reg4", f"{META}/dinov2/dinov2_vitg14/dinov2_vitg14_reg4_pretrain.pth"),
]


@functools.cache
def archive(row=TI16, num_classes=1000):
    """Returns the bytes of a file with the shapes of a row. It contains zeros, so it is small."""
    with keras.StatelessScope(initialize_variables=False):
        model = getattr(keras_vit, row.architecture)(num_classes=num_classes)
    shapes = shapes_of(model, names.sources()[row.source])
    keras.utils.clear_session(free_memory=False)
    body = io.BytesIO()
    np.savez_compressed(body, **{key: np.zeros(shape, "float16") for key, shape in shapes.items()})
    return body.getvalue()


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """Moves Keras' folder, and unsets the folder that the user named."""
    monkeypatch.setenv("KERAS_HOME", str(tmp_path / "keras"))
    monkeypatch.delenv("KERAS_VIT_WEIGHTS", raising=False)
    return tmp_path / "keras" / "keras_vit"


@pytest.fixture
def named(tmp_path, monkeypatch):
    """A folder, set as KERAS_VIT_WEIGHTS."""
    folder = tmp_path / "named"
    folder.mkdir()
    monkeypatch.setenv("KERAS_VIT_WEIGHTS", str(folder))
    return folder


@pytest.fixture
def offline(monkeypatch):
    """Fails the test if it downloads."""

    def download(url, *_, **__):
        pytest.fail(f"{url} was to be downloaded")

    monkeypatch.setattr(zoo, "download", download)


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with running(Server) as server:
        server.body = archive()
        yield server


def put(path, content=None):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(archive() if content is None else content.encode())
    return path


def check_not_fetched(message, row, error=ValueError):
    """Checks that the file of a published checkpoint is refused with this message."""
    refuses(message, zoo.fetch, row, error=error)


def check_row(row):
    """Checks that the fields of a row agree with each other and with those of its source."""
    assert row.name == f"{row.architecture}.{row.tag}" and zoo.ROWS.get(row.name) is row
    assert row.accuracy is None or (row.num_classes == 1000 and 70 < row.accuracy < 90)
    assert re.fullmatch(r"[\w.+-]+\.(npz|pth|safetensors)", row.filename)
    assert row.filename.endswith(row.url.replace("%2B", "+").rpartition("/")[2])
    assert re.fullmatch(r"https://[\w.%/-]+", row.url)
    assert (row.sha256_prefix is not None) == row.architecture.startswith("DeiT")
    if row.sha256_prefix:
        assert row.url.endswith(f"{row.resolution}-{row.sha256_prefix}.pth")
        assert row.architecture.endswith("Distilled") == ("distilled" in row.url)
    if "/augreg/" in row.url:
        model = row.url.rpartition("/")[2].partition("-")[0]
        stem, size, patch = re.fullmatch(r"(?:(R\d*)_)?(\w+)_(\d+)", model).groups()
        assert row.architecture == f"{stem or ''}ViT{size}{patch}"
        tuned = re.search(r"--imagenet2012-steps_20k-lr_0.0[13]-res_(\d+)\.npz$", row.url)
        assert (int(tuned[1]) if tuned else 21843) == (row.resolution if row.num_classes == 1000 else 21843)


def test_rows_are_unique_and_consistent():
    # Some file systems ignore case.
    for of in (lambda row: row.name, lambda row: row.filename.lower(), lambda row: row.url):
        assert len({of(row) for row in ROWS}) == len(ROWS)
    # The name of a file starts with its folder if several files have that name.
    assert B16.filename == "imagenet21k-ViT-B_16.npz"
    assert zoo.ROWS.get("ViTB16.sam_imagenet2012").filename == "sam-ViT-B_16.npz"
    assert zoo.ROWS.get("ViTB16.imagenet2012").filename == "ViT-B_16-224.npz"
    for row in ROWS:
        check_row(row)


@pytest.mark.parametrize("name, url", ROW_HAS_PUBLISHED_ADDRESS)
def test_row_has_published_address(name, url):
    assert zoo.ROWS[name].url == url


def test_list_weights_filters_and_returns_copies():
    assert {row.architecture for row in zoo.list_weights("ViTB16")} == {"ViTB16"}
    assert sum(len(zoo.list_weights(name)) for name in {row.architecture for row in ROWS}) == len(ROWS)
    refuses("`architecture`. Expected one of 'ViTB8', .*Received: 'B/16'", zoo.list_weights, "B/16")
    zoo.list_weights().clear()
    assert len(zoo.list_weights()) == len(ROWS)


def test_table_is_aligned_and_columns_are_chosen():
    lines = zoo.table(ROWS).splitlines()
    assert len(lines) == 1 + len(ROWS)
    licenses = {re.search("Apache-2.0|CC-BY-NC-4.0|MIT", line).start() for line in lines[1:]}
    assert licenses == {lines[0].index("license")}
    assert lines[1].split() == ["ViTB8.imagenet21k", "103M", "224", "21,843", "-", "Apache-2.0", "official"]
    assert max(map(len, lines)) <= 120
    assert len(zoo.table([]).splitlines()) == 1
    assert {row.tag for row in zoo.containing("dino")} == {"dino", "lvd142m", "lvd142m_reg4"}
    assert zoo.containing("") == ROWS
    row = zoo.ROWS.get("DeiTB16.imagenet2012")
    assert zoo.table([row], ("params", "sha256")).splitlines()[1].split() == ["87M", "b5f2ef4d"]
    refuses("`columns`. Expected one of 'name', .*'url'. Received: 'size'", zoo.table, [row], ("size",))
    names = ("DeiTTi16.imagenet2012", "DINOv2S14.lvd142m", "DeiTB16Distilled.imagenet2012_384", "CLIPB32.openai")
    for name, millions in zip(names, (5.717, 22.056, 87.630, 87.849), strict=True):
        assert zoo._parameters(zoo.ROWS.get(name)) == pytest.approx(millions * 1e6, rel=1e-3)


def test_unknown_tag_path_or_whole_name_is_refused(tmp_path, monkeypatch):
    for architecture, tag, tags in (
        ("DeiTB16", "imagenet21k", "'imagenet2012', 'imagenet2012_384'"),
        ("ViTg14", "imagenet21k", "none is known"),
        ("DeiTB16", 5, "'imagenet2012', 'imagenet2012_384'"),
    ):
        expected = f"`weights`. Expected the path of a file, or a tag of {architecture}: {tags}. Received: {tag!r}"
        refuses(re.escape(expected), zoo.resolve, architecture, tag)
    monkeypatch.chdir(tmp_path)
    message = "file or folder of weights. Received: 'a.npz', which does not exist in"
    not_found(message, zoo.local_path, "a.npz", "ViTB16")
    refuses("Received: 'ViTB16.imagenet21k'. Did you mean 'imagenet21k'", zoo.local_path, B16.name, "ViTB16")
    refuses(r"Received: 'imagenet'. Did you mean 'imagenet2012'\?", zoo.local_path, "imagenet", "ViTB16")
    with pytest.raises(FileNotFoundError, match="which does not exist in .*published checkpoint.*`from_pretrained`"):
        keras_vit.load_weights(keras_vit.ViTTi16(num_layers=1), "ViTB16.imagenet21k")


@pytest.mark.parametrize("place", [TI16.filename, f"a-kaggle-input/{TI16.filename}", f"augreg/{TI16.filename}"])
def test_named_folder_precedes_cache_and_stays_unchanged(named, home, offline, monkeypatch, place):
    put(home / TI16.filename, "in the cache")
    path = put(named / place)
    assert zoo.fetch(TI16) == str(path)
    # Kaggle's input folders are read-only, so nothing is written there.
    assert [p for p in named.rglob("*") if p.is_file()] == [path]
    digest = hashlib.sha256(archive()).hexdigest()
    assert (home / f"{TI16.filename}.sha256").read_text() == f"{digest}  {TI16.filename}\n"
    assert zoo.fetch(TI16) == str(path)
    put(path, "others")
    check_not_fetched(f"{re.escape(str(path))}.*, which is pinned in", TI16)
    monkeypatch.setenv("KERAS_VIT_WEIGHTS", str(named / "nowhere"))
    check_not_fetched("KERAS_VIT_WEIGHTS to name a folder. Received: .*nowhere", B16, NotADirectoryError)


def test_other_file_in_its_place_is_refused_unpinned(named, home, offline):
    put(named / "ViT-B_16.npz")
    put(named / "deeper" / "still" / B16.filename)
    put(home / B16.filename)
    check_not_fetched("Expected the file of ViTB16.imagenet21k. Received: .* with ViT-Ti/16", B16)
    put(named / B16.filename, "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 3\n")
    check_not_fetched("Git LFS pointer.*git lfs pull", B16)
    assert not (home / f"{B16.filename}.sha256").exists()


def test_published_hash_is_checked_in_named_folder(named, home, offline):
    row = zoo.ROWS.get("DeiTTi16.imagenet2012")
    path = put(named / row.filename, "weights")
    check_not_fetched("with the SHA-256 a1311bcf, which is in the published name", row)
    assert path.exists() and not list(home.iterdir())
    digest = hashlib.sha256(b"weights").hexdigest()
    assert zoo.fetch(row._replace(sha256_prefix=digest[:8])) == str(path)
    assert [p.name for p in home.iterdir()] == [f"{row.filename}.sha256"]


@pytest.mark.parametrize("name", ["RViTTi16.augreg_imagenet2012", "BiTR50x1.imagenet2012"])
def test_files_of_other_families_are_checked_by_size(home, offline, name, monkeypatch):
    # Zeros expand far more than real weights.
    monkeypatch.setattr("keras_vit.weights.read.bounds.FACTOR", 1000)
    row = zoo.ROWS.get(name)
    put(home / row.filename).write_bytes(archive(row))
    assert zoo.fetch(row) == str(home / row.filename)


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda body: flipped(body, len(body) // 2, 0), "truncated or damaged"),
        (lambda body: archive(num_classes=5), "Expected the file of ViTTi16.augreg_imagenet2012. Received: "),
    ],
    ids=["flipped bit", "other classes"],
)
def test_wrong_download_never_gets_name_of_checkpoint(server, home, change, message):
    server.body = change(server.body)
    check_not_fetched(message, TI16._replace(url=server.url), DownloadError)
    assert not (home / TI16.filename).exists() and not (home / f"{TI16.filename}.sha256").exists()


def test_file_is_downloaded_once_and_damage_is_refused(server, home):
    row = TI16._replace(url=server.url)
    path = home / TI16.filename
    assert zoo.fetch(row) == zoo.fetch(row) == str(path)
    assert path.read_bytes() == server.body and len(server.requests) == 1
    assert hashlib.sha256(server.body).hexdigest() in (home / f"{TI16.filename}.sha256").read_text()
    path.write_bytes(server.body[:-1])
    check_not_fetched("Delete it to download it again", row)
    path.unlink()
    zoo.fetch(row)
    assert path.read_bytes() == server.body


def test_failed_download_gives_advice(server, home, named):
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}/weights.npz"
        with pytest.raises(DownloadError) as error:
            zoo.fetch(TI16._replace(url=url))
    for part in (TI16.name, url, repr(TI16.filename), repr(str(home)), "KERAS_VIT_WEIGHTS", str(named)):
        assert part in str(error.value)
    server.answers = [Answer(status=404)]
    with pytest.raises(DownloadError, match=f"404.*{TI16.filename}") as missing:
        zoo.fetch(TI16._replace(url=server.url))
    for caught in (error, missing):
        assert "".join(traceback.format_exception(caught.value)).count("Traceback") == 1


def test_default_cache_is_in_keras_home(monkeypatch, tmp_path, offline):
    monkeypatch.delenv("KERAS_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    path = put(tmp_path / ".keras" / "keras_vit" / TI16.filename)
    assert zoo.fetch(TI16) == str(path)


def test_unwritable_cache_names_the_remedy(server, monkeypatch, tmp_path):
    monkeypatch.setenv("KERAS_HOME", str(put(tmp_path / "a file")))
    check_not_fetched("a file.*set KERAS_HOME to another", TI16._replace(url=server.url), DownloadError)
    assert not server.requests


def test_read_only_cache_is_read(home, offline, monkeypatch):
    def refuse(*_, **__):
        raise PermissionError

    path = put(home / TI16.filename)
    # The superuser can write to a read-only folder, so refuse each new file.
    monkeypatch.setattr(tempfile, "mkdtemp", refuse)
    home.chmod(0o555)
    assert zoo.fetch(TI16) == str(path)
    assert list(home.iterdir()) == [path]


def test_cached_checkpoint_opens_no_socket(home, monkeypatch):
    def refuse(*_, **__):
        pytest.fail("a socket was opened")

    put(home / TI16.filename)
    monkeypatch.setattr(socket, "socket", refuse)
    monkeypatch.setattr(socket, "create_connection", refuse)
    assert zoo.local_path("augreg_imagenet2012", "ViTTi16") == str(home / TI16.filename)
