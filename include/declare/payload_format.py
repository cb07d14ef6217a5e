"""In which format the payloads of a dataset's records are, as a contract declares it."""

from __future__ import annotations

from typing import Literal

from include.declare.yaml_declarations import Declared

JSON, AVRO, JSON_SCHEMA = "json", "avro", "json-schema"
"""JSON; Avro, and JSON, in the wire format of a schema registry."""


class DeclaredFormat(Declared):
    """The custom property `format` of a contract's record."""

    property: Literal["format"]
    value: Literal["json", "avro", "json-schema"]
