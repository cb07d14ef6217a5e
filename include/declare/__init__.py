"""What a dataset's folder declares, as frozen values: contract, pipeline, schemas, references, scaffolds."""
