with compared as (
  select *, lag(state) over (partition by device order by _place) as earlier,
         lag(watts) over (partition by device order by _place) as earlier_watts
  from ordered
)
select device, at as failed_at, earlier_watts as watts_before
from compared
where state = 'fault' and earlier <> 'fault'
