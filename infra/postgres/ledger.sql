-- The ledger has a database of its own, next to Airflow's.
create database ledger;
