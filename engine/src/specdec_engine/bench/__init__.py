"""The command `specdec bench`: methods beside plain decoding on the same prompts, with what they gain and why."""
