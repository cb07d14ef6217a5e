select category, count(*) as auctions, cast(cast(sum(price) as decimal(20, 2)) / count(*) as decimal(20, 2)) as mean_price
from winners
group by category
