select hour, word, count(*) as uses
from silver lateral view explode(words) as word
group by hour, word
