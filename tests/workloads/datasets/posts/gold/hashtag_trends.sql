select since, cast(rank as int) as rank, tag, uses
from (
    select *, row_number() over (partition by since order by uses desc, tag) as rank
    from (
        select since, tag, count(*) as uses
        from silver lateral view explode(tags) as tag
        group by since, tag
    ) as counted
) as ranked
where rank <= 10
