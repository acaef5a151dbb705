"""What a lowered program does and costs, in words and numbers."""
