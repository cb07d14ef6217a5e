select day, origin, rank, flight_id, departure_delay
from (
    select
        day,
        origin,
        flight_id,
        departure_delay,
        try_cast(row_number() over (
            partition by day, origin
            order by departure_delay desc, flight_id
        ) as integer) as rank
    from silver
    where kind = 'departed'
) as ranked
where rank <= 10
