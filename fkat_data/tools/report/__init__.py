"""A timeline as one page of HTML, with plots and the verdict in words."""
