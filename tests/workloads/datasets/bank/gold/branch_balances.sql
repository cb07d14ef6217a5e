with parts as (
  select bid, 1 as accounts, cast(abalance as bigint) as owed, 0 as tellers from accounts
  union all
  select bid, 0, 0, 1 from tellers
)
select bid, sum(accounts) as accounts, sum(owed) as owed, sum(tellers) as tellers from parts group by bid
