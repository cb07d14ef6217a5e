with compared as (
  select *, lag(state) over (partition by machine order by _place) as earlier from ordered
)
select machine, at, state
from compared
where earlier is null or earlier <> state
