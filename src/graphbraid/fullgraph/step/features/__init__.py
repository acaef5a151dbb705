"""Features as the tasks of a step read them: by node, edge and type, made once, or streamed in blocks."""
