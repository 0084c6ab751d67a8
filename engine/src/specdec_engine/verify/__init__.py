"""The command `specdec verify`: whether a configuration keeps the text of a model on the prompts of a user."""
