"""Methods scored on recorded token traces, with no target model."""
