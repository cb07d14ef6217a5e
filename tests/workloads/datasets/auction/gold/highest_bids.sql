select since, auction, bidder, price, date_time
from (
    select *, rank() over (partition by since order by price desc) as place
    from silver
    where event_type = 2
) as ranked
where place = 1
