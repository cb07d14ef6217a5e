"""Plans of every kind, from parameters to comparison and effect; quality, maintenance and analyses."""
