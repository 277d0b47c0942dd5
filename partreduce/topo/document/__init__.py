"""JSON documents: strict loading (`schedule`, `cluster`), canonical form, writing, and the JSON Schema."""
