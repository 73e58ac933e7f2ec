"""`raising_environment:Id-v0`: a module that cannot be imported."""

raise RuntimeError('the licence has expired')
