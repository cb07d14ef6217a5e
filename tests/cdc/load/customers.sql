-- Customers who come, get another number, and leave; a payment that is struck off the record.
\set aid random(1, 100000)
\set other random(1, 100000)
\set hid random(1, 60000)
BEGIN;
INSERT INTO pgbench_accounts (aid, bid, abalance, filler) VALUES (nextval('new_aid'), 1, :aid, 'new');
UPDATE pgbench_accounts SET aid = nextval('new_aid') WHERE aid = :aid;
DELETE FROM pgbench_accounts WHERE aid = :other;
DELETE FROM pgbench_history WHERE hid = :hid;
END;
