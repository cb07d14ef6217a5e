#!/usr/bin/env bash
# Runs the store until one of its processes ends or SIGTERM. Reads: STORE_KEY_ID, STORE_SECRET_FILE, STORE_BUCKET.
# Writes: /var/lib/objectstore. After a crash: start it again; what was acknowledged is there.
set -euo pipefail
export CEPH_CONF=/usr/local/share/objectstore/ceph.conf
data=/var/lib/objectstore ready=/var/lib/objectstore/run/ready
key=${STORE_KEY_ID:?} secret=$(head -1 "${STORE_SECRET_FILE:?}") bucket=${STORE_BUCKET:?}
address=http://127.0.0.1:9000
mkdir -p "$data"/{mon,osd,rgw,run}
rm -f "$data"/run/*
trap 'kill $(jobs -p) 2>/dev/null || true; wait; exit 0' TERM INT

create_monitor() {
  fsid=$(sed -n 's/^fsid = //p' "$CEPH_CONF")
  monmaptool --create --clobber --fsid "$fsid" --addv a "[v2:127.0.0.1:3300,v1:127.0.0.1:6789]" "$data/run/monmap"
  ceph-mon -i a --mkfs --monmap "$data/run/monmap"
}

create_disk() {
  ceph osd create
  ceph-osd -i 0 --mkfs --no-mon-config
  ceph osd crush add osd.0 1.0 root=default host=localhost
}

[ -e "$data/mon/store.db" ] || create_monitor
ceph-mon -f -i a &
[ -e "$data/osd/ready" ] || create_disk
ceph-osd -f -i 0 &
user=(--uid headrace --display-name Headrace --access-key "$key" --secret-key "$secret")
radosgw-admin user create "${user[@]}" >/dev/null 2>&1 || radosgw-admin user modify "${user[@]}" >/dev/null
radosgw -f -n client.rgw &
until curl -fsS -o /dev/null "$address/" 2>/dev/null; do sleep 0.2; done
# A bucket that exists is created again without an effect.
now=$(LC_ALL=C date -uR)
signature=$(printf 'PUT\n\n\n%s\n/%s' "$now" "$bucket" | openssl dgst -sha1 -hmac "$secret" -binary | base64)
curl -fsS -o /dev/null -X PUT -H "Date: $now" -H "Authorization: AWS $key:$signature" "$address/$bucket"
touch "$ready"
wait -n
kill $(jobs -p) 2>/dev/null || true
