"""An engine behind OpenAI's protocol: over HTTP, or in process for a user's own agent loop."""
