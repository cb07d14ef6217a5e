#!/usr/bin/env bash
# The stack's service `sample`: starts the stream of the flights in Airflow, then sends a year of them, a hundred events a
# second.  Writes: /state/sample.jsonl, the manifest of what was sent.  After an interruption: it continues there.
set -euo pipefail
manifest=/state/sample.jsonl

in_background() { "$@" & child=$!; wait "$child"; }
trap 'kill -INT "$child" 2>/dev/null; wait "$child"; exit 0' TERM INT
# Once only: who pauses the stream later finds it paused. Airflow knows the DAG some seconds after its start.
if [ ! -e "$manifest" ] && [ ! -e "$manifest.progress" ]; then
  until in_background headrace airflow dags unpause --yes stream__flights >/dev/null 2>&1; do in_background sleep 5; done
  echo "Started in Airflow: stream__flights"
fi
if [ ! -e "$manifest" ] || [ -e "$manifest.progress" ]; then
  echo "Sending the flights of 2013"
  in_background headrace produce flights --rate 100 --quiet --manifest "$manifest"
fi
echo "The flights of 2013 are sent"
in_background sleep infinity
