"""Hand-written jobs that do the work of `ad_events` without the platform, for `headrace bench peers`."""
