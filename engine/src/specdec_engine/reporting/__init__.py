"""What an engine reports while it works: log lines, Prometheus metrics, a progress bar."""
