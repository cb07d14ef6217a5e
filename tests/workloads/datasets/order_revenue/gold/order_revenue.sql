select
  o_orderkey as order_key,
  o_custkey as customer,
  o_orderdate as day,
  count(l_orderkey) as lines,
  coalesce(sum(l_extendedprice * (1 - l_discount)), 0) as revenue
from orders
left join lines on l_orderkey = o_orderkey
group by o_orderkey, o_custkey, o_orderdate
