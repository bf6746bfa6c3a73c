"""Container images: making, loading and serving them."""
