"""What the original BytePS has beside its modules for frameworks."""
