"""Converts the stored notebooks to pages of the site, with links to Colab and Kaggle."""

import base64
import json
from pathlib import Path
from urllib.parse import urlsplit

NOTEBOOKS = Path(__file__).parents[1] / "notebooks"
PICTURES = {"image/png": "png", "image/jpeg": "jpg"}
# Hide the side bars on pages of notebooks, because their code has long lines.
WIDE = "---\nhide:\n  - navigation\n  - toc\n---\n\n"
SERVICES = {
    "Colab": "https://colab.research.google.com/github/{repository}/blob/main/examples/notebooks/{name}.ipynb",
    "Kaggle": "https://kaggle.com/kernels/welcome?src=https://github.com/{repository}/blob/main/examples/notebooks/"
    "{name}.ipynb",
}


def titles():
    """Returns {name: title} of the notebooks."""
    found = {}
    for path in sorted(NOTEBOOKS.glob("*.ipynb")):
        first = "".join(json.loads(path.read_text(encoding="utf-8"))["cells"][0]["source"])
        found[path.stem] = first.partition("\n")[0].removeprefix("# ")
    return found


def service_links(name, repo_url):
    """Returns links that open a notebook in Colab and Kaggle, or "" if `repo_url` is not a GitHub repository."""
    address = urlsplit(repo_url or "")
    if address.netloc != "github.com":
        return ""
    repository = address.path.strip("/")
    links = [f"[{service}]({url.format(repository=repository, name=name)})" for service, url in SERVICES.items()]
    return f"Open in {' or '.join(links)}\n\n"


def page(name, repo_url=""):
    """Returns a notebook as Markdown, and {path: bytes} of its pictures."""
    parts, pictures = [WIDE], {}
    for cell in json.loads((NOTEBOOKS / f"{name}.ipynb").read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(f"{source}\n\n")
            if len(parts) == 2:
                parts.append(service_links(name, repo_url))
            continue
        parts.append(f"```python\n{source}\n```\n\n")
        for output in cell["outputs"]:
            data = output.get("data", {})
            kind = next((kind for kind in PICTURES if kind in data), None)
            if kind is not None:
                path = f"{name}_{len(pictures)}.{PICTURES[kind]}"
                pictures[path] = base64.b64decode("".join(data[kind]))
                parts.append(f"![Output]({path})\n\n")
                continue
            text = "".join(output.get("text", data.get("text/plain", ""))).strip("\n")
            if text:
                parts.append(f"```text\n{text}\n```\n\n")
    return "".join(parts), pictures
