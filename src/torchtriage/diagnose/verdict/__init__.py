"""From a trace to a judgement: can it be trusted, what is wrong, what would fixing it give back."""
