"""The list of settings for display: each with its value, where the value comes from, and its meaning."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass

from include.ground.secret_masking import MASK, mask_secrets
from include.ground.settings import OUTSIDE_SETTINGS, PREFIX, Settings
from include.ground.settings_profiles import DEFAULT_PROFILE, profile_values

BY_ENVIRONMENT, BY_DEFAULT = "environment", "default"


@dataclass(frozen=True)
class SettingInfo:
    """A setting for display: variable, value and default as text, where the value comes from, its meaning."""

    name: str
    value: str
    default: str
    origin: str
    meaning: str

    @property
    def is_default(self) -> bool:
        """Whether neither the environment nor a profile sets it."""
        return self.origin == BY_DEFAULT


def list_settings(environ: Mapping[str, str] = os.environ) -> list[SettingInfo]:
    """Return every setting in the order of declaration, also invalid values. Secrets are masked."""
    infos, profile = [], environ.get(f"{PREFIX}PROFILE", DEFAULT_PROFILE)
    chosen = profile_values(profile)
    for field, declared in Settings.model_fields.items():
        name = f"{PREFIX}{field.upper()}"
        default = _text(declared.get_default(call_default_factory=True))
        if name in environ:
            value, origin = environ[name], BY_ENVIRONMENT
        elif field in chosen:
            value, origin = _text(chosen[field]), f"profile {profile}"
        else:
            value, origin = default, BY_DEFAULT
        infos.append(SettingInfo(name, _shown(field, value), default, origin, declared.description or ""))
    outside = (
        SettingInfo(name, environ.get(name, ""), "", BY_ENVIRONMENT if name in environ else BY_DEFAULT, why)
        for name, why in OUTSIDE_SETTINGS.items()
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
