"""A trained model as folders that other programs load: a PEFT adapter, a whole model, a GGUF file, an Ollama model."""
