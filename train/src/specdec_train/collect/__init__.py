"""`specdec train collect`: the target writes questions and answers; its states are kept while it decodes."""
