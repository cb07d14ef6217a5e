#!/usr/bin/env bash
# What an executor's pod runs: executor.sh executor. Spark's driver gives everything else as variables.
set -euo pipefail
[ "${1:-}" = executor ] || { echo "headrace: executor.sh executor, as Spark's driver starts it; got: $*" >&2; exit 2; }

SPARK_HOME=$(python -c 'import pyspark, pathlib; print(pathlib.Path(pyspark.__file__).parent)')
export SPARK_HOME
# SPARK_JAVA_OPT_0, _1, …: one option each, which may have spaces.
options=()
for ((number = 0; ; number++)); do
  name=SPARK_JAVA_OPT_$number
  [ -n "${!name+set}" ] || break
  options+=("${!name}")
done
exec java "${options[@]}" "-Xms$SPARK_EXECUTOR_MEMORY" "-Xmx$SPARK_EXECUTOR_MEMORY" -cp "$SPARK_HOME/jars/*" \
  org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend \
  --driver-url "$SPARK_DRIVER_URL" --executor-id "$SPARK_EXECUTOR_ID" --cores "$SPARK_EXECUTOR_CORES" \
  --app-id "$SPARK_APPLICATION_ID" --hostname "$SPARK_EXECUTOR_POD_IP" \
  --resourceProfileId "$SPARK_RESOURCE_PROFILE_ID" --podName "$SPARK_EXECUTOR_POD_NAME"
