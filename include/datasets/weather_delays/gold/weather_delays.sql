with departed as (
  select
    date_trunc('hour', scheduled_departure) as hour,
    origin,
    count_if(kind = 'departed') as departures,
    count_if(kind = 'departed' and departure_delay > 15) as delayed,
    count_if(kind = 'cancelled') as cancelled,
    sum(case when kind = 'departed' then departure_delay end) as delay_minutes
  from flights
  group by 1, 2
),

observed as (
  select
    date_trunc('hour', observed_at) as hour,
    station as origin,
    max_by(struct(temp, wind_speed, precip, visib), struct(observed_at, _partition, _offset)) as last
  from weather
  group by 1, 2
)

select
  hour,
  origin,
  departures,
  delayed,
  cancelled,
  delay_minutes,
  last.temp as temp,
  case
    when last.wind_speed < 10 then 'calm' when last.wind_speed < 20 then 'windy' when last.wind_speed >= 20 then 'stormy'
  end as wind,
  case when last.precip > 0 then 'rain' when last.precip = 0 then 'dry' end as rain,
  case when last.visib < 3 then 'poor' when last.visib >= 3 then 'clear' end as visibility
from departed
left join observed using (hour, origin)
