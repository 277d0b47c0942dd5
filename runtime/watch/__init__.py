"""Watch: what workers say of themselves while `preduce run --watch` shows them."""
