"""One model of current state: processes, progress, lag and health. Reads; never acts."""
