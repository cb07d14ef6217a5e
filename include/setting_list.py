"""Every setting for display, with secrets masked."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass

from include.secret_masking import MASK, mask_secrets
from include.settings import OUTSIDE_SETTINGS, PREFIX, Settings


@dataclass(frozen=True)
class SettingInfo:
    """A setting for display: variable, value and default as text, whether the environment sets it, its meaning."""

    name: str
    value: str
    default: str
    given: bool
    meaning: str


def list_settings(environ: Mapping[str, str] = os.environ) -> list[SettingInfo]:
    """Return every setting in the order of declaration, also invalid values. Secrets are masked."""
    infos = []
    for field, declared in Settings.model_fields.items():
        name = f"{PREFIX}{field.upper()}"
        default = _text(declared.get_default(call_default_factory=True))
        value = _shown(field, environ.get(name, default))
        infos.append(SettingInfo(name, value, default, name in environ, declared.description or ""))
    outside = (
        SettingInfo(name, environ.get(name, ""), "", name in environ, why) for name, why in OUTSIDE_SETTINGS.items()
    )
    return [*infos, *outside]


def _shown(field: str, text: str) -> str:
    """Return the value with secrets masked; an object that is not JSON as a whole, because its keys are not known."""
    if field not in ("spark_conf", "kafka_options"):
        return mask_secrets(text)
    try:
        return mask_secrets(text) if isinstance(json.loads(text), dict) else MASK
    except ValueError:
        return MASK


def _text(value: object) -> str:
    return json.dumps(value) if isinstance(value, dict) else str(value)
