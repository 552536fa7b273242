"""A trained model as a folder for other programs: a PEFT adapter, a whole model, a GGUF file, an Ollama model."""
