select auction, category, seller, bidder, price, date_time
from (
    select auction, a.category, a.seller, b.bidder, b.price, b.date_time,
        row_number() over (partition by auction order by b.price desc, b.date_time, b.event_id) as place
    from (select * from silver where event_type = 2) as b
    join (select * from silver where event_type = 1) as a using (auction)
    where b.date_time between a.date_time and a.expires
) as ranked
where place = 1
