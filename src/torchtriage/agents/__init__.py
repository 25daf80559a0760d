"""What agents are served over the Model Context Protocol: answers, tools, programs, and the server."""
