#!/usr/bin/env bash
# The compose stack: bash infra/stack.sh build | up | down [--volumes] | images | pin | memory | compose ARGUMENT…
# Reads: docker-compose.yml; STAND_INS=1: also infra/stand-ins/compose.yaml, for sites without a registry.
# Writes: images headrace-*:local, .stack/ (passwords, and digests of images by `pin`), the containers, networks and volumes of the project.
# After an interruption: run it again; finished layers and healthy services are kept.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

SECRETS=${STACK_SECRETS:-.stack}
FILES=(-f docker-compose.yml)
[ -z "${STAND_INS:-}" ] || FILES+=(-f infra/stand-ins/compose.yaml)
[ -z "${STACK_OVERRIDE:-}" ] || FILES+=(-f "$STACK_OVERRIDE")

# Digests of `pin`; the environment and .env come first.
PINNED=$SECRETS/images.env
[ ! -f "$PINNED" ] || { set -a; . "$PINNED"; set +a; }

compose() { docker compose "${FILES[@]}" "$@"; }

require_engine() {
  docker info >/dev/null 2>&1 && docker compose version >/dev/null 2>&1 && return
  printf 'headrace: no Docker engine with Compose is reachable; nothing was done\n  → start one, then the same command again\n' >&2
  exit 2
}

# The folder is its owner's, so that the file may be readable for the containers' user.
make_secrets() {
  local name
  install -d -m 700 "$SECRETS"
  for name in postgres_password kafka_password grafana_password warehouse_secret; do
    [ ! -s "$SECRETS/$name" ] || continue
    python3 -c 'import secrets; print(secrets.token_urlsafe(24))' >"$SECRETS/$name"
    chmod 444 "$SECRETS/$name"
  done
}

# In the order of their bases; layers that did not change take no time.
build() {
  local image
  build_image platform infra/platform
  build_classes
  for image in runner airflow kafka; do build_image "$image" "infra/$image"; done
  [[ ,${COMPOSE_PROFILES:-}, != *,objectstore,* ]] || build_image objectstore infra/objectstore
  [ -z "${STAND_INS:-}" ] || for image in infra/stand-ins/*/Dockerfile; do
    image=$(basename "$(dirname "$image")")
    build_image "stand-in-$image" "infra/stand-ins/$image"
  done
}

build_image() {
  local name=headrace-$1:local folder=$2 printed
  shift 2
  # An engine without BuildKit complains about itself at each build; of a failed one everything is shown.
  [ -z "${STACK_BASE_IMAGE:-}" ] || set -- --build-arg "BASE=$STACK_BASE_IMAGE" "$@"
  printed=$(docker build --quiet --tag "$name" --file "$folder/Dockerfile" "$@" . 2>&1) || { printf '%s\n' "$printed" >&2; exit 1; }
  echo "  image ${name%:local}: $(size "$name")"
}

# Code is in the image that makes the class archive, but a change of the code leaves the archive valid.
build_classes() {
  local layers
  layers=$(docker image inspect headrace-platform:local --format '{{json .RootFS.Layers}}' | cksum)
  [ "$(docker image inspect headrace-classes:local --format '{{index .Config.Labels "platform"}}' 2>/dev/null)" != "$layers" ] || return 0
  build_image classes infra/classes --label "platform=$layers"
}

# The digests that the registry gives for the tags today; from then on these are used, until `pin` is run again.
pin() {
  local line name image digest
  install -d -m 700 "$SECRETS"
  : >"$PINNED.new"
  { grep -o '\${STACK_[A-Z]*_IMAGE:-[^}]*}' docker-compose.yml; echo '${STACK_BASE_IMAGE:-debian:bookworm-slim}'; } | while read -r line; do
    name=${line#??} name=${name%%:-*} image=${line#*:-} image=${image%\}}
    docker pull --quiet "$image" >/dev/null
    digest=$(docker image inspect "$image" --format '{{index .RepoDigests 0}}')
    [[ $digest == *@sha256:* ]] || { echo "headrace: the registry gave no digest of $image; nothing was pinned" >&2; exit 1; }
    echo "$name=$digest" | tee -a "$PINNED.new"
  done
  mv "$PINNED.new" "$PINNED"
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
  echo "Console: http://127.0.0.1:${STACK_CONSOLE_PORT:-8081}   log in as who docker compose exec console headrace console --add-user NAME adds"
  echo "Commands: docker compose exec runner headrace status"
}

command=${1:-up}
shift || true
require_engine
case $command in
  build) make_secrets && build ;;
  up) up "$@" ;;
  pin) pin ;;
  down) compose --profile '*' down "$@" ;;
  images) docker image ls 'headrace-*' --format 'table {{.Repository}}\t{{.Size}}' ;;
  memory) docker stats --no-stream --format 'table {{.Name}}\t{{.MemUsage}}\t{{.CPUPerc}}' $(compose ps --quiet) ;;
  compose) compose "$@" ;;
  *) printf 'headrace: unknown command %s\n  → build, up, down, images, pin, memory, compose\n' "$command" >&2; exit 2 ;;
esac
