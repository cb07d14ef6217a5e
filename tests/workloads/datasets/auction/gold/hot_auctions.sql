select since, auction, bids
from (
    select *, rank() over (partition by since order by bids desc) as place
    from (select since, auction, count(*) as bids from silver where event_type = 2 group by since, auction) as counted
) as ranked
where place = 1
