-- The number and worth of items by day and city.
select
    day,
    city,
    count(*) as items,
    sum(item.price) as worth
from silver
lateral view explode(items) as item
group by day, city
