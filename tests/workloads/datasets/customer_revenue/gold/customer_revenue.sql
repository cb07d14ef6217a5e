select customer, day, count(*) as orders, sum(lines) as lines, sum(revenue) as revenue
from orders
group by customer, day
