"""Turn a timeline into an HTML page with plots and a verdict in words."""
