"""Gets checkpoints by name from the Hugging Face hub and Kaggle with their clients, and uploads to Hugging Face."""

import contextlib
import fnmatch
import glob
import importlib
import logging
import os
import re
import tempfile
from pathlib import Path

from keras_vit import arguments
from keras_vit.weights.read.folders import WEIGHTS

logger = logging.getLogger("keras_vit")

_HUGGING_FACE = re.compile(
    # A revision is the name of a branch or tag without a slash, a commit, or a pull request (refs/pr/N).
    r"hf://(?P<repo>[\w.-]+/[\w.-]+)(@(?P<revision>refs/pr/\d+|[^/@]+))?(/(?P<inside>[^/].*?))?/?"
)
_KAGGLE = re.compile(r"kaggle://(?P<handle>[\w.-]+(/[\w.-]+){3}(/\d+)?)(/(?P<inside>[^/].*?))?/?")
_SYNTAX = "hf://owner/name[@revision][/file or folder] or kaggle://owner/model/framework/variation[/version][/file]"
_CONFIGS = ("config.json", "preprocessor_config.json", "processor_config.json")
_FILES = (".npz", ".safetensors", ".pth", ".keras", ".h5")


def is_name(path):
    """Returns True if `path` is the name of a model on a hub (hf:// or kaggle://), not a local path."""
    return isinstance(path, str) and path.startswith(("hf://", "kaggle://"))


def local_path(path):
    """Returns the local path of a model on a hub, and downloads missing files; returns local paths unchanged."""
    if not is_name(path):
        return path
    if found := _HUGGING_FACE.fullmatch(path):
        return _hugging_face_path(path, found["repo"], found["revision"], found["inside"] or "")
    if found := _KAGGLE.fullmatch(path):
        return _kaggle_path(path, found["handle"], found["inside"])
    raise arguments.invalid("weights", _SYNTAX, path)


def upload(name, format, write, card):
    """Uploads the files that `write(path)` writes. If the repository does not exist, it is created.

    If the repository has no README, the text `card(repo, folder)` becomes its README. If `name` would read other files
    of the repository after the upload, nothing is uploaded and a ValueError is raised.
    """
    found = _HUGGING_FACE.fullmatch(name)
    if found is None:
        raise arguments.invalid("path", "a path, or hf://owner/name[@branch][/file or folder]", name)
    repo, revision = found["repo"], found["revision"]
    file = "" if format in ("huggingface", "timm") else f"{repo.partition('/')[2]}.npz"
    api = _client("huggingface_hub").HfApi()
    with tempfile.TemporaryDirectory() as draft:
        path = Path(draft, found["inside"] or file)
        path.parent.mkdir(parents=True, exist_ok=True)
        write(path)
        with _explaining(f"Cannot upload to {name!r}", repo):
            api.create_repo(repo, exist_ok=True)
            files = api.list_repo_files(repo, revision=revision)
        _refuse_stale(name, files, _files_in(draft), found["inside"] or "")
        if "README.md" not in files:
            Path(draft, "README.md").write_text(card(repo, Path(draft)), encoding="utf-8")
        with _explaining(f"Cannot upload to {name!r}", repo):
            message = "Upload a model of keras_vit"
            api.upload_folder(repo_id=repo, folder_path=draft, revision=revision, commit_message=message)


def _refuse_stale(name, files, written, inside):
    """Raises if reading `name` after the upload of the files `written` would also read older files."""
    try:
        _, patterns = _choose(name, [*written, *(set(files) - set(written))], inside)
    # If there are several checkpoints, `_choose` raises a ValueError.
    except ValueError:
        patterns = [f"{glob.escape(inside)}*{suffix}" for suffix in _FILES]
    if stale := [file for file in files if file not in written and any(fnmatch.fnmatch(file, p) for p in patterns)]:
        raise ValueError(
            f"Expected a repository in which {name!r} reads only the uploaded files. Received: a repository that also "
            f"contains {', '.join(stale)}, from an older upload. Delete them, or choose another repository or folder."
        )


def _hugging_face_path(name, repo, revision, inside):
    hub, note = _client("huggingface_hub"), ""
    with _explaining(f"Cannot get {name!r}", repo):
        try:
            files = [file.rfilename for file in hub.HfApi().model_info(repo, revision=revision).siblings]
        except hub.errors.RevisionNotFoundError:
            raise
        # If the hub cannot be reached, the class of the error depends on huggingface_hub's HTTP client. So after any
        # error, look in the cache.
        except Exception as error:
            cached = {"revision": revision, "allow_patterns": [], "local_files_only": True}
            try:
                files = _files_in(hub.snapshot_download(repo, **cached))
            except hub.errors.LocalEntryNotFoundError:
                raise error from None
            note = f" in the cache (the hub cannot be reached: {type(error).__name__})"
            logger.warning(f"{name} is read from the cache, as the hub cannot be reached ({type(error).__name__}).")
    target, patterns = _choose(name, files, inside, note)
    with _explaining(f"Cannot get {name!r}", repo):
        folder = hub.snapshot_download(
            repo, revision=revision, allow_patterns=patterns, local_files_only=bool(note), library_name="keras_vit"
        )
    return str(Path(folder, target))


def _kaggle_path(name, handle, inside):
    kagglehub = _client("kagglehub")
    try:
        path = kagglehub.model_download(handle, inside)
    except Exception as error:
        status = getattr(getattr(error, "response", None), "status_code", None)
        kind = {401: PermissionError, 403: PermissionError, 404: FileNotFoundError}.get(status, ConnectionError)
        raise kind(
            f"Cannot get {name!r}: {_sentence(error)} If the model needs an account or consent, accept its terms "
            "on kaggle.com and call kagglehub.login(), or set KAGGLE_API_TOKEN. Without a network, only a name with "
            "a version can be read from the cache."
        ) from error
    return path if inside else str(Path(path, _choose(name, _files_in(path), "")[0]))


def _choose(name, files, inside, note=""):
    """Chooses a checkpoint in a repository. Returns the path to open, and glob patterns of the checkpoint's files."""
    if inside in files:
        return inside, _with_shards(inside)
    start = f"{inside}/" if inside else ""
    here = sorted(file for file in files if file.startswith(start))
    listed = f"The repository's files{note}: {', '.join(sorted(files)[:20]) or 'none'}"
    if not here:
        raise FileNotFoundError(f"Expected a file or folder of the repository. Received: {name!r}. {listed}")
    for weights in (start + file for file in WEIGHTS):
        if weights in here:
            configs = [start + config for config in _CONFIGS if start + config in here]
            return inside if start + "config.json" in here else weights, [*_with_shards(weights), *configs]
    found = [file for file in here if file.endswith(_FILES)]
    if len(found) == 1:
        return found[0], _with_shards(found[0])
    if found:
        raise ValueError(
            f"Expected one checkpoint, such as {name.rstrip('/').removesuffix(inside).rstrip('/')}/{found[0]}. "
            f"Received: {name!r}, which contains {len(found)} checkpoints: {', '.join(found[:20])}"
        )
    raise FileNotFoundError(f"Expected weights, such as model.safetensors, in {name!r}. Received: none. {listed}")


def _with_shards(file):
    stem, suffix = os.path.splitext(file.removesuffix(".index.json"))
    shards = [f"{glob.escape(stem)}-*-of-*{suffix}"] if file.endswith(".index.json") else []
    return [glob.escape(file), *shards]


def _files_in(folder):
    return [path.relative_to(folder).as_posix() for path in Path(folder).rglob("*") if path.is_file()]


def _client(package):
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError as error:
        raise ImportError(f"Models on this hub need the package {package}: pip install {package}") from error


def _sentence(error):
    text = str(error).strip()
    return text if text.endswith((".", "!", "?")) else f"{text}."


@contextlib.contextmanager
def _explaining(what, repo):
    """Replaces huggingface_hub's errors by errors that name the repository and a remedy."""
    from huggingface_hub import constants, errors

    page, log_in = f"{constants.ENDPOINT}/{repo}", "log in with `hf auth login` or set HF_TOKEN"
    try:
        yield
    except errors.GatedRepoError as error:
        raise PermissionError(f"{what}: it is gated. Accept its conditions at {page}, then {log_in}.") from error
    except errors.RepositoryNotFoundError as error:
        raise FileNotFoundError(f"{what}: there is no repository {page}. If it is private, {log_in}.") from error
    except errors.RevisionNotFoundError as error:
        raise FileNotFoundError(f"{what}: {page} has no such branch, tag or commit.") from error
    except errors.OfflineModeIsEnabled as error:
        raise ConnectionError(
            f"{what}: HF_HUB_OFFLINE is set. Unset it, or copy the folder {constants.HF_HUB_CACHE!r} with these "
            "files from a machine with a network."
        ) from error
    except Exception as error:
        status = getattr(getattr(error, "response", None), "status_code", None)
        if status in (401, 403):
            raise PermissionError(f"{what}: the hub refused access ({status}). To use {page}, {log_in}.") from error
        # An error of the disk already has a clear message.
        if isinstance(error, OSError) and error.errno:
            raise
        raise ConnectionError(
            f"{what}: {_sentence(error)} Check the network and try again. Files that are already complete are kept."
        ) from error
