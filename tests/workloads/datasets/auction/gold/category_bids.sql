select auction, b.bidder, b.price, a.item_name, a.seller
from (select * from silver where event_type = 2) as b
join (select * from silver where event_type = 1 and category = 10) as a using (auction)
