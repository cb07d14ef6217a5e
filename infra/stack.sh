#!/usr/bin/env bash
# The compose stack: bash infra/stack.sh build | up | down [--volumes] | images | memory | compose ARGUMENT…
# Reads: docker-compose.yml; STAND_INS=1: also infra/stand-ins/compose.yaml, for sites without a registry.
# Writes: images headrace-*:local, .stack/ (the database's password), the containers, networks and volumes of the project.
# After an interruption: run it again; finished layers and healthy services are kept.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

SECRETS=${STACK_SECRETS:-.stack}
FILES=(-f docker-compose.yml)
[ -z "${STAND_INS:-}" ] || FILES+=(-f infra/stand-ins/compose.yaml)
[ -z "${STACK_OVERRIDE:-}" ] || FILES+=(-f "$STACK_OVERRIDE")

compose() { docker compose "${FILES[@]}" "$@"; }

require_engine() {
  docker info >/dev/null 2>&1 && docker compose version >/dev/null 2>&1 && return
  printf 'headrace: no Docker engine with Compose is reachable; nothing was done\n  → start one, then the same command again\n' >&2
  exit 2
}

# The folder is its owner's, so that the file may be readable for the containers' user.
make_secrets() {
  [ ! -s "$SECRETS/postgres_password" ] || return 0
  install -d -m 700 "$SECRETS"
  python3 -c 'import secrets; print(secrets.token_urlsafe(24))' >"$SECRETS/postgres_password"
  chmod 444 "$SECRETS/postgres_password"
}

# In the order of their bases; layers that did not change take no time.
build() {
  local image
  for image in platform runner airflow kafka; do
    docker build --quiet --tag "headrace-$image:local" --file "infra/$image/Dockerfile" . >/dev/null
    echo "  image headrace-$image: $(size "headrace-$image:local")"
  done
  [ -z "${STAND_INS:-}" ] || for image in infra/stand-ins/*/Dockerfile; do
    image=$(basename "$(dirname "$image")")
    docker build --quiet --tag "headrace-stand-in-$image:local" --file "infra/stand-ins/$image/Dockerfile" . >/dev/null
    echo "  image headrace-stand-in-$image: $(size "headrace-stand-in-$image:local")"
  done
}

size() { docker image inspect "$1" --format '{{.Size}}' | awk '{printf "%.0f MB", $1 / 1e6}'; }

up() {
  local began
  make_secrets
  echo "Building the images: the first time 5 to 10 minutes and 3 GB, later seconds"
  build
  began=$(date +%s)
  compose up --detach --wait "$@"
  echo "All services are healthy after $(($(date +%s) - began)) s"
  echo "Airflow: http://127.0.0.1:${STACK_AIRFLOW_PORT:-8080}   user admin, password: docker compose exec runner cat /state/airflow/passwords.json"
  echo "Commands: docker compose exec runner headrace status"
}

command=${1:-up}
shift || true
require_engine
case $command in
  build) make_secrets && build ;;
  up) up "$@" ;;
  down) compose down "$@" ;;
  images) docker image ls 'headrace-*' --format 'table {{.Repository}}\t{{.Size}}' ;;
  memory) docker stats --no-stream --format 'table {{.Name}}\t{{.MemUsage}}\t{{.CPUPerc}}' $(compose ps --quiet) ;;
  compose) compose "$@" ;;
  *) printf 'headrace: unknown command %s\n  → build, up, down, images, memory, compose\n' "$command" >&2; exit 2 ;;
esac
