select bidder, auction, price, date_time
from (
    select *, row_number() over (partition by bidder, auction order by date_time desc, event_id desc) as place
    from silver
    where event_type = 2
) as ranked
where place = 1
