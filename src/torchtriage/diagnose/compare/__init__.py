"""Two runs of one workload: what changed the step time, by how much, and is it more than noise."""
