"""`vivace serve`: an OpenAI-compatible HTTP server around one model. Needs the extra vivace[serve]; docs/serving.md says how to use it."""
