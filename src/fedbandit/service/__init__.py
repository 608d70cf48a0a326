"""The server: many agents, many models, nothing lost and nothing counted twice."""
