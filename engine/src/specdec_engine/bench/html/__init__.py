"""The report of `specdec bench` as one HTML page that needs no network."""
