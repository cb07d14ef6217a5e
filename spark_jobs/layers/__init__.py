"""How each layer is written: bronze, silver with rejected, gold."""
