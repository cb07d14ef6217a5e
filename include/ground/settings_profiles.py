"""Profiles: what `HEADRACE_PROFILE` sets, each value with its reason and what was measured.

A profile changes no row of a table. A setting that the environment has wins over it. Measured with
`HEADRACE_PROFILE=P headrace bench run drain latency --dataset flights --runs 1 --warm-up 30000 --events 100000 --rate
2000 --seconds 40` on 2 cores, the machine idle otherwise; "fresh" is the default everywhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource

Profile = Literal["fresh", "throughput", "small"]
DEFAULT_PROFILE: Profile = "fresh"
PURPOSES: Mapping[Profile, str] = {
    "fresh": "records are published as soon as possible",
    "throughput": "least CPU for each record; results are some seconds older",
    "small": "one stream on a machine with 4 GB and one free core",
}


@dataclass(frozen=True)
class Knob:
    """A setting that profiles other than `fresh` change: by profile the value, None for the default; why; the gain."""

    setting: str
    throughput: float | str | None
    small: float | str | None
    reason: str
    measured: str


KNOBS = (
    Knob(
        "trigger_seconds", 10.0, 2.0,
        "A run costs CPU whatever it holds: with fewer, larger runs a record costs less, and is published later. A "
        "full batch is followed at once, so a backlog does not wait.",
        "CPU s per million: fresh 635, small 228, throughput 100; p95 1.4, 5.8, 10.8 s",
    ),
    Knob(
        "batch_records", None, 50_000,
        "Records of a full batch: a small heap holds fewer at a time.",
        "by itself not measured",
    ),
    Knob(
        "refine_records", None, 100_000,
        "Records of a run that catches up: a run holds a part of them in memory.",
        "by itself not measured",
    ),
    Knob(
        "batch_bytes", None, 64 << 20,
        "Bytes of a full batch: where records are large, this is what limits it.",
        "not measured: flights are small",
    ),
    Knob(
        "driver_memory", None, "1g",
        "Heap of a driver. A JVM takes what it may before it collects.",
        "resident driver JVM after a minute: 1.9 GB, small 1.1 GB; all processes of a stream 2.8 and 1.9 GB",
    ),
    Knob(
        "driver_cores", None, 1,
        "Threads of a driver: each task has buffers of its own, and a core is left for others.",
        "drain of 100,000 flights: 24,200/s, small 17,600/s",
    ),
    Knob(
        "broker_memory", None, "256m",
        "Heap of the broker that Headrace runs.",
        "resident broker: 273 MB, small 238 MB",
    ),
)  # fmt: skip


def profile_values(profile: str) -> Mapping[str, float | str]:
    """Return the settings that a profile changes; of `fresh`, and of an unknown one, none."""
    if profile not in PURPOSES or profile == DEFAULT_PROFILE:
        return {}
    values = ((knob.setting, getattr(knob, profile)) for knob in KNOBS)
    return {setting: value for setting, value in values if value is not None}


class ProfileSource(PydanticBaseSettingsSource):
    """The values of the profile that arguments or environment choose; both win over it."""

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[object, str, bool]:
        """Return the profile's value of a setting; None: it has none."""
        return self().get(field_name), field_name, False

    def __call__(self) -> dict[str, object]:
        """Return the profile's values; of an unknown profile none, since its validation names the known ones."""
        return dict(profile_values(str(self.current_state.get("profile", DEFAULT_PROFILE))))


class ProfiledSettings(BaseSettings):
    """Settings whose defaults a profile replaces."""

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Return where values come from: the first source that has one wins."""
        return init_settings, env_settings, ProfileSource(settings_cls)
