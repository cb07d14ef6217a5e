select since, prefix, cast(rank as int) as rank, term, searches
from (
    select *, row_number() over (partition by since, prefix order by searches desc, term) as rank
    from (
        select since, prefix, term, count(*) as searches
        from silver lateral view explode(prefixes) as prefix
        group by since, prefix, term
    ) as counted
) as ranked
where rank <= 10
