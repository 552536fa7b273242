"""Playing scenarios: one rollout (rollout), what the model sees and says (speaker), a run's fixed parts (player),
and many rollouts at once (gather)."""
