"""Place tables separately: embeddings with rows sharded over the workers, or with gathered touched rows."""
