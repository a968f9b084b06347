"""`torch.__future__`: how modules convert their parameters, which ampkit changes in place, whatever is set."""

from __future__ import annotations

_set = {"overwrite": False, "swap": False}


def set_overwrite_module_params_on_conversion(value: bool) -> None:
    """Keep the value, for `get_overwrite_module_params_on_conversion`; nothing else changes."""
    _set["overwrite"] = value


def get_overwrite_module_params_on_conversion() -> bool:
    """What `set_overwrite_module_params_on_conversion` was given last; False at first."""
    return _set["overwrite"]


def set_swap_module_params_on_conversion(value: bool) -> None:
    """Keep the value, for `get_swap_module_params_on_conversion`; nothing else changes."""
    _set["swap"] = value


def get_swap_module_params_on_conversion() -> bool:
    """What `set_swap_module_params_on_conversion` was given last; False at first."""
    return _set["swap"]
