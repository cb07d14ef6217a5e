select since, party, p.name
from (select distinct since, party, name from silver where event_type = 0) as p
join (select distinct since, party from silver where event_type = 1) as a using (since, party)
