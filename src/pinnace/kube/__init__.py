"""The Kubernetes API as every part of pinnace uses it."""
