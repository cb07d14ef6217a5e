"""Checks a contract against the JSON schema and the model of the Open Data Contract Standard.

The data plane has a stricter reader of its own (include/declare/contract_file.py), which needs no package.
"""

from __future__ import annotations

import json

from include.declare.yaml_declarations import Document
from include.ground.optional_packages import import_optional


def check_standard(document: Document) -> None:
    """Note violations of the standard. Raises QualityNotInstalled.

    The JSON schema comes first: the package's model accepts unknown keys of inner objects.
    """
    package, jsonschema = import_optional("open_data_contract_standard.model"), import_optional("jsonschema")
    schema = json.loads(package.OpenDataContractStandard.json_schema())
    validator = jsonschema.validators.validator_for(schema)(schema)
    for error in sorted(validator.iter_errors(document.value), key=lambda error: list(map(str, error.absolute_path))):
        document.refuse(tuple(error.absolute_path), error.message.splitlines()[0][:200])
    if document.problems:
        return
    try:
        package.OpenDataContractStandard(**document.value)
    except ValueError as error:
        document.refuse((), " ".join(str(error).split())[:300])
