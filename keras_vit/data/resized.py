import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from keras_vit import arguments
from keras_vit.data.folder import image_files_in
from keras_vit.data.source import logger
from keras_vit.files import replacing
from keras_vit.images.files import read_pixels


def resize_folder(
    path: str | os.PathLike, out: str | os.PathLike, *, shorter_side: int = 256, quality: int = 95
) -> dict[str, str]:
    """Writes a copy of a folder of images with fewer pixels, which takes less time to decode in each epoch.

    The copy has the same subfolders. Images whose shorter side is longer than `shorter_side` are reduced to it with
    Pillow's bicubic filter and written as RGB JPEG, with ".jpg" after names of other formats. The other images are
    copied without changes. Files that exist in `out` are kept, so that the same call continues an interrupted copy.
    Files that cannot be decoded are left out, and listed in a warning.

    A crop of the copy is less sharp than a crop of the original if it is smaller than `image_size`. A random crop with
    `scale=(0.05, 1)` of an image of 256 pixels, for example, has 57 to 256 pixels a side.

    Args:
        path: The folder, as for `from_directory`.
        out: The folder of the copy.
        shorter_side: Integer, in pixels.
        quality: Integer from 1 to 100, the quality of the JPEGs.

    Returns:
        {file: error} of the files that were left out.

    Raises:
        FileNotFoundError: If the folder does not exist.
        ValueError: If an argument is out of range, `out` is in `path`, or two copies would have the same name.

    Example:

    >>> import keras_vit.data, keras, pathlib, tempfile
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> (folder / "photos" / "cat").mkdir(parents=True)
    >>> keras.utils.save_img(folder / "photos" / "cat" / "0.png", np.zeros((300, 400, 3)))
    >>> keras_vit.data.resize_folder(folder / "photos", folder / "small", shorter_side=150)
    {}
    >>> keras.utils.load_img(folder / "small" / "cat" / "0.png.jpg").size
    (200, 150)
    """
    path, out = Path(path), Path(out)
    arguments.positive_int("shorter_side", shorter_side)
    if arguments.positive_int("quality", quality) > 100:
        raise arguments.invalid("quality", "an integer from 1 to 100", quality)
    if not path.is_dir():
        raise FileNotFoundError(f"Expected `path` to be a folder of images. Received: {str(path)!r}")
    if out.resolve().is_relative_to(path.resolve()):
        raise arguments.invalid("out", f"a folder outside {str(path)!r}", str(out))

    files = image_files_in(path)
    if clash := {_jpeg(file) for file in files if _jpeg(file) != file} & set(files):
        raise ValueError(f"Expected no files whose names are others' with .jpg. Received: {sorted(clash)[:10]}")

    def write(file):
        """Returns why a file was left out, or None."""
        copy, jpeg = (out / Path(name).relative_to(path) for name in (file, _jpeg(file)))
        if copy.exists() or jpeg.exists():
            return None
        try:
            image = read_pixels(file)
        except ValueError as error:
            return str(error)
        copy.parent.mkdir(parents=True, exist_ok=True)
        if min(image.shape[:2]) <= shorter_side:
            with replacing(copy) as draft:
                shutil.copyfile(file, draft)
        else:
            with replacing(jpeg) as draft:
                _reduced(image, shorter_side).save(draft, "JPEG", quality=quality)
        return None

    # Pillow decodes, resizes and encodes without Python's lock.
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        errors = {file: error for file, error in zip(files, pool.map(write, files), strict=True) if error}
    if errors:
        listed = "".join(f"\n  {error}" for error in list(errors.values())[:20])
        logger.warning("%d of %d files were left out, since they do not decode:%s", len(errors), len(files), listed)
    return errors


def _jpeg(file):
    """Returns the name of a file's reduced copy."""
    return file if file.lower().endswith((".jpg", ".jpeg")) else f"{file}.jpg"


def _reduced(image, shorter_side):
    """Returns an array (height, width, 3) as a Pillow image whose shorter side has `shorter_side` pixels."""
    from PIL import Image

    height, width = image.shape[:2]
    factor = shorter_side / min(height, width)
    size = round(width * factor), round(height * factor)
    return Image.fromarray(image).resize(size, Image.Resampling.BICUBIC)
