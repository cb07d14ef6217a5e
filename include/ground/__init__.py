"""What everything stands on: settings, paths, errors, durable files, clients of the outside, the machine."""
