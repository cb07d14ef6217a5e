"""The contract compiler: a declared contract becomes a strict parser and row rules as Spark columns."""
