"""Questions to begin with, by kind of task: made of templates, of passages that every Python has, and of earlier answers."""
