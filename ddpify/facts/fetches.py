"""Events in, downloads out: what fetches data from elsewhere or unpacks it, by qualified name or by `download=True`."""

from __future__ import annotations

import re

import libcst as cst

from ddpify.facts.externals import role_of
from ddpify.facts.frames import Event
from ddpify.facts.outside import can_be
from ddpify.facts.values import Instance, Value

_FETCHES = re.compile(
    r"(\w+\.)*(urlretrieve|download_url|download_and_extract_archive|download_file_from_google_drive|extract_archive"
    r"|hf_hub_download|snapshot_download|download_url_to_file|dataset_download|model_download)"
    r"|datasets\.(load\.)?load_dataset|wget\.download|gdown\.(download|cached_download|download_folder)"
    r"|nltk\.(downloader\.)?download|shutil\.unpack_archive|sklearn\.datasets\.fetch_\w+"
    r"|torchtext\.utils\.download_from_url"
)
_BASES = re.compile(r"torch\.utils\.data\.(dataset\.)?(Dataset|IterableDataset)")
_EXTRACTS = frozenset({"extractall", "download_and_prepare", "extract"})


def is_fetch(event: Event) -> bool:
    """Whether an event downloads or unpacks data, as far as that can be seen from the call."""
    if event.kind == "external":
        flag = event.extra.get("download")
        wanted = flag is not None and can_be(flag, True) and not event.name.startswith("builtins.")
        return wanted or _FETCHES.fullmatch(event.name) is not None
    if event.kind == "method":
        return (
            event.name in _EXTRACTS and isinstance(event.node, cst.Call) and isinstance(event.node.func, cst.Attribute)
        )
    return False


def makes_dataset(event: Event, values: dict[cst.CSTNode, Value]) -> bool:
    """A class of the project that derives from a dataset of torch or of a library, made with `download=True`."""
    obj = event.obj
    if event.kind != "new" or not isinstance(event.node, cst.Call) or not isinstance(obj, Instance) or obj.cls is None:
        return False
    if not any(role_of(b) == "dataset" or _BASES.fullmatch(b) for b in obj.cls.outside()):
        return False
    given = [a.value for a in event.node.args if a.keyword is not None and a.keyword.value == "download"]
    return bool(given) and can_be(values.get(given[0], ()), True)
