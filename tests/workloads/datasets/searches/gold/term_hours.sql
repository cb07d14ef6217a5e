with hours as (
    select term, hour_of_week, hour, count(*) as observed
    from silver
    group by term, hour_of_week, hour
),
usual as (
    select *, cast(avg(cast(observed as decimal(20, 0))) over earlier as double) as expected
    from hours
    window earlier as (partition by term, hour_of_week order by hour rows between unbounded preceding and 1 preceding)
),
scored as (
    select *, (observed - expected) / sqrt(expected + 1) as score from usual
)
select
    term, hour_of_week, hour, observed, expected, score,
    case when score >= 5 and expected >= 10 then 'spike' when score <= -4 and expected >= 10 then 'dip' end as kind
from scored
