"""Device timelines made from recorded CPU operator streams, for what no CPU recording can hold."""
