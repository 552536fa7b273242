"""An engine behind OpenAI's and Anthropic's protocols: over HTTP, or in process for a user's own agent loop."""
