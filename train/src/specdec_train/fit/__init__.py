"""`specdec train fit`: a head is trained on collected data; batches, optimizer, schedule, checkpoints, progress."""
