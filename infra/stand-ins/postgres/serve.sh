#!/usr/bin/env bash
# bash serve.sh postgres [OPTION…]: creates the cluster in PGDATA the first time, as the official image does, then serves.
# After a crash of the first start: the data folder was not completed and is made again.
set -euo pipefail

if [ ! -f "$PGDATA/headrace-ready" ]; then
  find "$PGDATA" -mindepth 1 -delete
  initdb --username="$POSTGRES_USER" --pwfile="$POSTGRES_PASSWORD_FILE" --auth-host=scram-sha-256 --auth-local=trust --encoding=UTF8 --locale=C.UTF-8
  echo 'host all all all scram-sha-256' >>"$PGDATA/pg_hba.conf"
  pg_ctl start --wait --options='-c listen_addresses='
  [ "$POSTGRES_DB" = postgres ] || createdb --username="$POSTGRES_USER" "$POSTGRES_DB"
  for script in /docker-entrypoint-initdb.d/*.sql; do
    [ ! -f "$script" ] || psql --username="$POSTGRES_USER" --dbname="$POSTGRES_DB" --set=ON_ERROR_STOP=1 --file="$script"
  done
  pg_ctl stop --wait
  touch "$PGDATA/headrace-ready"
fi
exec "$@" -c listen_addresses='*'
