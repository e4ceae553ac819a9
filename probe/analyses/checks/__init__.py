"""The two checks, from the weights and from query and key, and the report that both fill in."""
