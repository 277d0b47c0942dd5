"""JSON documents: strict loading, canonical form, schema."""
