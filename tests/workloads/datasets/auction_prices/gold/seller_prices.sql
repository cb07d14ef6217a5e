select seller, count(*) as auctions, cast(cast(sum(price) as decimal(20, 2)) / count(*) as decimal(20, 2)) as mean_price
from (
  select seller, price, row_number() over (partition by seller order by date_time desc, auction desc) as place
  from winners
) as ranked
where place <= 10
group by seller
