"""Codecs: how numbers become fewer bytes and numbers again, as pure functions of tensors; nothing here communicates."""
