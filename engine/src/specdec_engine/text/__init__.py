"""Between text and ids: prompts, chat templates, and the text of an output as it grows."""
