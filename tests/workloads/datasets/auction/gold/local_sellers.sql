select party, p.name, p.city, p.state, a.auction
from (select * from silver where event_type = 1 and category = 10) as a
join (select * from silver where event_type = 0 and state in ('OR', 'ID', 'CA')) as p using (party)
