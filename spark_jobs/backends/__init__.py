"""Where rows are computed: the Spark session and the cluster."""
