"""How a context shrinks: policies, the files that they are written in, and the choice among them."""
