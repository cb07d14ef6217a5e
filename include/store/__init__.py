"""Each publication is put into an object store, with its tables, before readers see it."""
