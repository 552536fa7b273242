"""An engine behind OpenAI's protocol: over HTTP for everybody, in process for an agent loop of the user's own."""
