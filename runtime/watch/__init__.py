"""Watch: what workers say of themselves while `partreduce run --watch` shows them."""
