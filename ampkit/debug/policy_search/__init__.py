"""The policy search: what runs in which format, so that a model is fast and its loss stays near."""
