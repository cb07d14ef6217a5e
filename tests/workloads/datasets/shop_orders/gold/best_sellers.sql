select day, country, place, sku, revenue
from (
    select *, row_number() over (partition by day, country order by revenue desc, sku) as place
    from (
        select day, country, sku, sum(quantity * price) as revenue
        from silver
        group by day, country, sku
    )
)
where place <= 3
