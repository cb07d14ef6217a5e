#!/usr/bin/env bash
# The broker of the compose stack: bash serve.sh   (working folder: its volume)
# Reads: server.properties, the embedded broker's, with other addresses; KAFKA_HEAP, KAFKA_HOST_PORT.
# The password of the only user, headrace, is in /run/secrets/kafka/password. A volume keeps the one of its first start.
# Writes: the volume. The cluster id is written by the first start, and kept. After a crash: Kafka recovers its logs.
set -euo pipefail

heap=${KAFKA_HEAP:-512m} host_port=${KAFKA_HOST_PORT:-9094}
IFS= read -r password </run/secrets/kafka/password
# 9223372036854775807: the operating system decides when records reach the disk.
sed -e 's/\${port}/9092/; s/\${controller_port}/9093/; s/\${flush}/9223372036854775807/' \
  -e '/^\(listeners\|advertised\.listeners\|listener\.security\.protocol\.map\)=/d' /opt/kafka/server.properties >server.properties
cat >>server.properties <<EOF
# Services of the stack use the name kafka, programs on the host the published port; both log in. What is plain is
# reached from inside this container alone.
listeners=STACK://:9092,HOST://:9094,INTERNAL://127.0.0.1:9095,CONTROLLER://127.0.0.1:9093
advertised.listeners=STACK://kafka:9092,HOST://127.0.0.1:$host_port,INTERNAL://127.0.0.1:9095
listener.security.protocol.map=STACK:SASL_PLAINTEXT,HOST:SASL_PLAINTEXT,INTERNAL:PLAINTEXT,CONTROLLER:PLAINTEXT
inter.broker.listener.name=INTERNAL
sasl.enabled.mechanisms=SCRAM-SHA-512
listener.name.stack.scram-sha-512.sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required;
listener.name.host.scram-sha-512.sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required;
EOF
java=(java "-Xmx$heap" -XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:+ExitOnOutOfMemoryError -XX:MaxMetaspaceSize=96m
  -XX:ReservedCodeCacheSize=48m -XX:MaxDirectMemorySize=64m
  -Dlog4j2.configurationFile=/opt/kafka/log4j2.properties -cp '/opt/kafka/jars/*')
if [ ! -f data/meta.properties ]; then
  # A volume that was formatted once and has lost its data must not become an empty broker.
  [ ! -f formatted ] || { echo "kafka: the data of cluster $(cat formatted) is gone from the volume; no empty broker was started" >&2; exit 1; }
  cluster=$("${java[@]}" kafka.tools.StorageTool random-uuid)
  "${java[@]}" kafka.tools.StorageTool format --ignore-formatted -t "$cluster" -c server.properties \
    --add-scram "SCRAM-SHA-512=[name=headrace,password=$password]" >/dev/null # It prints what it derives from the password.
  echo "$cluster" >formatted
fi
exec "${java[@]}" kafka.Kafka server.properties
