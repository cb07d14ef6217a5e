select day, device, place, event_id, litres
from (
    select
        day,
        device,
        event_id,
        litres,
        cast(row_number() over (partition by day, device order by litres desc, event_id) as integer) as place
    from silver
    where litres > 50
) as ranked
where place <= 3
