"""The op `recycling_table`: candidates of each id, kept up to date and unfolded into trees."""
