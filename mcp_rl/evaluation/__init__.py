"""Play models on the same scenarios, measure them, compare them, and report.

- run: `mcp-rl evaluate`; models (what a model's name means), scenarios (which ones to play), bench (opens the models)
- evaluate: plays one model; measure and statistics: means, intervals and p-values; comparison: pairs of models;
  agreement: the judge against the verifier
- result: report.json; tables: the same as tables; page: the same as an HTML page with charts and episodes
- folder: folders of evaluations and runs, and their episode files; export and inspect_log: episodes for other tools
- chat_model, scripted: models that are not policies; progress: bars and lines in the terminal; difficulty:
  difficulty.jsonl; step_time: the kinds of work in the time of training steps
"""
