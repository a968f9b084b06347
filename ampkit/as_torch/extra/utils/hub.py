"""`torch.hub`: nothing is downloaded, and no code of others is run."""

import re
from urllib.parse import urlparse

from ...refused import refused

__all__ = [
    "HASH_REGEX", "download_url_to_file", "get_dir", "list", "load", "load_state_dict_from_url", "load_url", "set_dir",
    "urlparse",
]  # fmt: skip

HASH_REGEX = re.compile(r"-([a-f0-9]*)\.")  # of the hash in the name of a published file
_FILES = "download the file, and torch.load(path)"
load = refused("torch.hub.load", "clone the repository, and import its code")
list = refused("torch.hub.list", "clone the repository, and import its code")
load_state_dict_from_url = load_url = refused("torch.hub.load_state_dict_from_url", _FILES)
download_url_to_file = refused("torch.hub.download_url_to_file", _FILES)
get_dir = refused("torch.hub.get_dir", _FILES)
set_dir = refused("torch.hub.set_dir", _FILES)
