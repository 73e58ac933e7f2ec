"""The papers' equations, as pure functions of tensors."""
