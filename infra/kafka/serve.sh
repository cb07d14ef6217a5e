#!/usr/bin/env bash
# The broker of the compose stack: bash serve.sh   (working folder: its volume)
# Reads: server.properties, the embedded broker's, with other addresses; KAFKA_HEAP, KAFKA_FLUSH, KAFKA_HOST_PORT.
# Writes: the volume. The cluster id is written by the first start, and kept. After a crash: Kafka recovers its logs.
set -euo pipefail

heap=${KAFKA_HEAP:-512m} host_port=${KAFKA_HOST_PORT:-9094}
# 9223372036854775807: the operating system decides when records reach the disk; 1: before they are acknowledged.
sed -e 's/\${port}/9092/; s/\${controller_port}/9093/' -e "s/\\\${flush}/${KAFKA_FLUSH:-9223372036854775807}/" \
  -e '/^\(listeners\|advertised\.listeners\|listener\.security\.protocol\.map\)=/d' /opt/kafka/server.properties >server.properties
cat >>server.properties <<EOF
# Services of the stack use the name kafka, programs on the host the published port.
listeners=PLAINTEXT://:9092,HOST://:9094,CONTROLLER://127.0.0.1:9093
advertised.listeners=PLAINTEXT://kafka:9092,HOST://127.0.0.1:$host_port
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,HOST:PLAINTEXT,CONTROLLER:PLAINTEXT
inter.broker.listener.name=PLAINTEXT
EOF
java=(java "-Xmx$heap" -XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:+ExitOnOutOfMemoryError -XX:MaxMetaspaceSize=96m
  -XX:ReservedCodeCacheSize=48m -XX:MaxDirectMemorySize=64m
  -Dlog4j2.configurationFile=/opt/kafka/log4j2.properties -cp '/opt/kafka/jars/*')
if [ ! -f data/meta.properties ]; then
  # A volume that was formatted once and has lost its data must not become an empty broker.
  [ ! -f formatted ] || { echo "kafka: the data of cluster $(cat formatted) is gone from the volume; no empty broker was started" >&2; exit 1; }
  cluster=$("${java[@]}" kafka.tools.StorageTool random-uuid)
  "${java[@]}" kafka.tools.StorageTool format --ignore-formatted -t "$cluster" -c server.properties
  echo "$cluster" >formatted
fi
exec "${java[@]}" kafka.Kafka server.properties
