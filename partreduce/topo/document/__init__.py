"""JSON documents: strict reading (`schedule`, `cluster`), canonical form, writing, and the JSON Schema."""
