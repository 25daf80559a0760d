"""Which rank of a job in training makes the others wait: from summaries of some hundred bytes a rank."""
