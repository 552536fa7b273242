"""Goal tasks: requests that say what is wanted, in ordinary words, and not which tools to call.

Made from a world model (`mcp_rl.explore.entities`) without a language model. `propose` draws programs over the world at
random; `program` answers them; `lookups` finds the least calls that show such an answer; `changes` draws end states to
be brought about; `words` and `requests` say them in English. `questions` draws what is worth asking, and `balance` sees
to it that no answer is a good guess. `goals` puts them together, and proves each task on the live server.
"""
