"""Supervised fine-tuning: a run that learns from conversations instead of rewards."""
