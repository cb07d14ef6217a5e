with parts as (
  select bid, aid, cast(abalance as bigint) as owed, cast(null as int) as tid from accounts
  union all
  select bid, cast(null as int), cast(0 as bigint), tid from tellers
)
select bid, count(aid) as accounts, sum(owed) as owed, count(tid) as tellers from parts group by bid
