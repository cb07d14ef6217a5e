select auction, cast(place as int) as place, bidder, price, date_time
from (
    select *, row_number() over (partition by auction order by price desc, date_time, event_id) as place
    from silver
    where event_type = 2
) as ranked
where place <= 10
